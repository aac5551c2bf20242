package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	sessiond "sessiond.dev/sessiond/clients/go"
	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

// reply is what a turn came to, as it is posted to the callback. It may be posted twice, when it was not known
// whether the first time arrived: the receiver tells by the deliveries.
type reply struct {
	Deliveries []string `json:"deliveries"`
	Text       string   `json:"text"`
	// Outcome is COMPLETED, INTERRUPTED or FAILED.
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"`
}

// turn is the running turn, folded from its events.
type turn struct {
	deliveries []string
	pieces     []piece
}

type piece struct {
	seq  int64
	text string
}

// fold takes one event; a reply comes with the end of a turn that read a delivery.
func (t *turn) fold(event *sessiondv1.Event, waiting map[string]string) *reply {
	switch body := event.GetBody().(type) {
	case *sessiondv1.Event_MessageQueued:
		if delivery, ours := deliveryOf(event.GetRequestId()); ours {
			waiting[body.MessageQueued.GetMessageId()] = delivery
		}
	case *sessiondv1.Event_MessageDropped:
		delete(waiting, body.MessageDropped.GetMessageId())
	case *sessiondv1.Event_UserMessage:
		id := body.UserMessage.GetMessageId()
		if delivery, ours := waiting[id]; ours {
			delete(waiting, id)
			t.deliveries = append(t.deliveries, delivery)
		}
	case *sessiondv1.Event_AssistantText:
		t.pieces = append(t.pieces, piece{event.GetSeq(), body.AssistantText.GetDelta()})
	case *sessiondv1.Event_Retracted:
		for len(t.pieces) > 0 && t.pieces[len(t.pieces)-1].seq >= body.Retracted.GetSinceSeq() {
			t.pieces = t.pieces[:len(t.pieces)-1]
		}
	case *sessiondv1.Event_TurnEnded:
		done := *t
		*t = turn{}
		if len(done.deliveries) > 0 {
			return done.reply(body.TurnEnded)
		}
	}
	return nil
}

func (t *turn) reply(end *sessiondv1.TurnEnded) *reply {
	var text strings.Builder
	for _, p := range t.pieces {
		text.WriteString(p.text)
	}
	outcome := strings.TrimPrefix(end.GetOutcome().String(), "TURN_OUTCOME_")
	return &reply{Deliveries: t.deliveries, Text: text.String(), Outcome: outcome, Message: end.GetMessage()}
}

// poster posts replies until one is taken.
type poster struct{ url string }

func (p poster) post(ctx context.Context, r *reply) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		if err = p.attempt(ctx, body); err == nil || ctx.Err() != nil {
			return err
		}
		slog.Warn("callback failed", "error", err, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p poster) attempt(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("the callback answered %s", response.Status)
	}
	return nil
}

// follower reads the session and posts the answers to deliveries.
type follower struct {
	client  *sessiond.Client
	session string
	state   *state
	poster  poster
}

func newFollower(client *sessiond.Client, session string, state *state, poster poster) *follower {
	return &follower{client, session, state, poster}
}

func (f *follower) run(ctx context.Context) error {
	for {
		err := f.follow(ctx)
		if !sessiond.HasReason(err, sessiondv1.ErrorReason_ERROR_REASON_TRANSCRIPT_CHANGED) {
			return err
		}
		// The daemon's data was restored from elsewhere: what was remembered means nothing there.
		slog.Warn("another transcript: starting over", "error", err)
		*f.state = state{path: f.state.path, Waiting: map[string]string{}}
	}
}

func (f *follower) follow(ctx context.Context) error {
	subscription := f.client.Subscribe(ctx, f.session,
		sessiond.AfterSeq(f.state.Seq), sessiond.InTranscript(f.state.TranscriptID),
		sessiond.OnLost(func(e *sessiond.Error) { slog.Info("connection lost", "error", e) }))
	running := &turn{}
	waiting := maps.Clone(f.state.Waiting)
	for event, err := range subscription.Events() {
		var failure *sessiond.Error
		if errors.As(err, &failure) && failure.Code == codes.Canceled {
			return nil
		}
		if err != nil {
			return err
		}
		answered := running.fold(event, waiting)
		if answered != nil {
			if err := f.poster.post(ctx, answered); err != nil {
				return err
			}
		}
		// Only between turns: what came of a turn that still runs is read again after a restart.
		if _, ended := event.GetBody().(*sessiondv1.Event_TurnEnded); ended {
			f.state.Seq, f.state.TranscriptID = event.GetSeq(), subscription.TranscriptID()
			f.state.Waiting = maps.Clone(waiting)
			if err := f.state.save(); err != nil {
				return err
			}
		}
	}
	return errors.New("the session was deleted")
}
