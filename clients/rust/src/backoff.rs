use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// How long to wait before the next attempt: doubled each time, and a little at random so that
/// many clients do not come back in one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait, not shorter than what the server asked for.
    pub(crate) fn next(&mut self, told: Option<Duration>) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(6)).min(LONGEST);
        self.failures += 1;
        doubled.mul_f64(0.8 + 0.4 * fastrand::f64()).max(told.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_five_seconds_and_start_anew() {
        let mut backoff = Backoff::default();
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.next(None).as_secs_f64() * 1000.0 / f64::from(expected);
            assert!((0.8..=1.2).contains(&wait), "{wait} of {expected}");
        }
        backoff.reset();
        assert!(backoff.next(None) <= Duration::from_millis(120));
    }

    #[test]
    fn the_server_is_obeyed() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(Some(Duration::from_secs(2))), Duration::from_secs(2));
        assert!(backoff.next(Some(Duration::from_millis(1))) >= Duration::from_millis(160));
    }
}
