package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	sessiond "sessiond.dev/sessiond/clients/go"
	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

const (
	// deliveryHeader carries what makes a delivery one and the same, however often it is sent.
	deliveryHeader = "X-Delivery-Id"
	// requestPrefix keeps request_ids of deliveries apart from those of other clients of the session.
	requestPrefix = "hook-"
	// A request_id has at most 128 bytes, the prefix among them.
	maxDeliveryID = 128 - len(requestPrefix)
	maxBody       = 256 << 10
	// Most hooks give up after ten seconds and deliver again.
	patience = 8 * time.Second
	// When to deliver again, where the daemon does not say: it is back within seconds of a restart.
	comeAgain = 5 * time.Second
)

// delivery is the body of a hook.
type delivery struct {
	Text string `json:"text"`
}

// accepted answers a delivery: the message is durable, the agent will read it.
type accepted struct {
	MessageID string `json:"message_id"`
	Seq       string `json:"seq"`
}

// hook hands deliveries over to one session.
type hook struct {
	client  *sessiond.Client
	session string
	// restarting keeps deliveries that find the agent gone from restarting it under each other.
	restarting sync.Mutex
}

func newHandler(client *sessiond.Client, session string) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /hook", &hook{client: client, session: session})
	return mux
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(deliveryHeader)
	if id == "" || len(id) > maxDeliveryID {
		refuse(w, http.StatusBadRequest,
			fmt.Sprintf("%s must name the delivery in at most %d bytes", deliveryHeader, maxDeliveryID))
		return
	}
	var body delivery
	if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&body); err != nil {
		refuse(w, http.StatusBadRequest, `the body must be {"text": "..."}: `+err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	sent, err := h.deliver(ctx, &sessiondv1.SendRequest{
		SessionId: h.session, RequestId: requestPrefix + id, Text: body.Text,
		// A delivery is a job of its own: it waits for the turn that runs.
		Delivery: sessiondv1.Delivery_DELIVERY_NEXT_TURN,
	})
	if err != nil {
		refuseBecause(w, id, err)
		return
	}
	answer(w, http.StatusAccepted, accepted{sent.GetMessageId(), strconv.FormatInt(sent.GetSeq(), 10)})
}

// deliver sends the message; an agent that has exited is started again for it.
func (h *hook) deliver(ctx context.Context, request *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
	sent, err := h.send(ctx, request)
	if !hasExited(err) {
		return sent, err
	}
	h.restarting.Lock()
	defer h.restarting.Unlock()
	// Another delivery may have restarted it meanwhile: once more would end the turn that runs now.
	if sent, err = h.send(ctx, request); !hasExited(err) {
		return sent, err
	}
	slog.Warn("the agent has exited: restarting it", "session", h.session)
	if _, err = sessiond.Retry(ctx, h.client.Sessions.Control, &sessiondv1.ControlRequest{
		SessionId: h.session, Action: &sessiondv1.ControlRequest_Restart{Restart: &sessiondv1.Restart{}},
	}); err != nil {
		return nil, err
	}
	return h.send(ctx, request)
}

func hasExited(err error) bool {
	return sessiond.HasReason(err, sessiondv1.ErrorReason_ERROR_REASON_SESSION_EXITED)
}

// send waits for a daemon that is away as long as ctx lasts: Retry alone gives up after five attempts, and those
// are over within two seconds when nobody listens.
func (h *hook) send(ctx context.Context, request *sessiondv1.SendRequest) (*sessiondv1.SendResponse, error) {
	call := func(ctx context.Context, r *sessiondv1.SendRequest, options ...grpc.CallOption) (*sessiondv1.SendResponse, error) {
		return h.client.Sessions.Send(ctx, r, append(options, grpc.WaitForReady(true))...)
	}
	return sessiond.Retry(ctx, call, request)
}

// refuseBecause tells the sender whether delivering again can help.
func refuseBecause(w http.ResponseWriter, id string, err error) {
	status := http.StatusBadGateway
	var after time.Duration
	var failure *sessiond.Error
	if errors.As(err, &failure) {
		switch failure.Code {
		case codes.InvalidArgument:
			status = http.StatusBadRequest
		case codes.AlreadyExists:
			// The same delivery id with another text.
			status = http.StatusConflict
		case codes.ResourceExhausted:
			status = http.StatusTooManyRequests
		case codes.Unavailable, codes.DeadlineExceeded:
			// Unknown whether it arrived. The next delivery has the same id, so that does no harm.
			status, after = http.StatusServiceUnavailable, comeAgain
		}
		if failure.RetryAfter != nil {
			after = *failure.RetryAfter
		}
	}
	if after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	slog.Warn("delivery refused", "delivery", id, "status", status, "error", err)
	refuse(w, status, err.Error())
}

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"error": message})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// deliveryOf gives the delivery that a request_id was made of, if it was one.
func deliveryOf(requestID string) (string, bool) { return strings.CutPrefix(requestID, requestPrefix) }
