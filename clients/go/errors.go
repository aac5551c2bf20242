package sessiond

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

const (
	errorDomain  = "sessiond"
	reasonPrefix = "ERROR_REASON_"
)

// Error is how every call of this package fails. It answers errors.As, and status.FromError gives the gRPC
// status it was made from.
type Error struct {
	Code    codes.Code
	Message string
	// Reason is a name of sessiondv1.ErrorReason without its prefix, such as SESSION_NOT_FOUND; a later
	// server may send one this client does not know. Empty: the failure is not of the daemon's making
	// (a lost connection, a deadline).
	Reason string
	// Metadata goes with the reason.
	Metadata map[string]string
	// Violations names the request's fields at fault.
	Violations []Violation
	// RetryAfter is set when the daemon says that the same call may succeed later.
	RetryAfter *time.Duration

	status *status.Status
}

// Violation is a field that is not acceptable, in the proto's spelling, and why.
type Violation struct {
	Field       string
	Description string
}

func (e *Error) Error() string {
	name := e.Reason
	if name == "" {
		name = CodeName(e.Code)
	}
	return name + ": " + e.Message
}

// GRPCStatus lets status.FromError and status.Code see through.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// HasReason tells whether err is an Error with that reason.
func HasReason(err error, reason sessiondv1.ErrorReason) bool {
	var e *Error
	return errors.As(err, &e) && e.Reason != "" && e.Reason == strings.TrimPrefix(reason.String(), reasonPrefix)
}

// CodeName gives a gRPC code's name as the specification writes it: NOT_FOUND.
func CodeName(code codes.Code) string {
	names := [...]string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
		"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
	if int(code) < len(names) {
		return names[code]
	}
	return fmt.Sprintf("CODE_%d", code)
}

// wrap turns what grpc returns into an *Error; nil and what is one already stay.
func wrap(err error) error {
	var already *Error
	if err == nil || errors.As(err, &already) {
		return err
	}
	st := status.Convert(err)
	e := &Error{Code: st.Code(), Message: st.Message(), status: st}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				e.Reason, e.Metadata = d.GetReason(), maps.Clone(d.GetMetadata())
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Violations = append(e.Violations, Violation{v.GetField(), v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			delay := d.GetRetryDelay().AsDuration()
			e.RetryAfter = &delay
		}
	}
	return e
}

func newError(code codes.Code, reason sessiondv1.ErrorReason, format string, args ...any) *Error {
	st := status.Newf(code, format, args...)
	e := &Error{Code: code, Message: st.Message(), status: st}
	if reason != sessiondv1.ErrorReason_ERROR_REASON_UNSPECIFIED {
		e.Reason = strings.TrimPrefix(reason.String(), reasonPrefix)
	}
	return e
}

// mayHeal tells whether a broken stream is worth another attempt, and whether that is only a guess.
func (e *Error) mayHeal(heard bool) (heals, guess bool) {
	switch {
	case e.Code == codes.Unavailable:
		return true, false
	case e.RetryAfter != nil:
		return heard, false
	case e.Reason == "":
		// What transports and proxies call a connection that was cut.
		perhaps := e.Code == codes.Internal || e.Code == codes.Unknown || e.Code == codes.Canceled
		return perhaps, perhaps
	}
	return false, false
}
