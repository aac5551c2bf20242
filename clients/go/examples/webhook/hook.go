package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	sessiond "sessiond.dev/sessiond/clients/go"
	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

const (
	// deliveryHeader carries what makes a delivery one and the same, however often it is sent.
	deliveryHeader = "X-Delivery-Id"
	// requestPrefix keeps request_ids of deliveries apart from those of other clients of the session.
	requestPrefix = "hook-"
	maxBody       = 256 << 10
	// Most hooks give up after ten seconds and deliver again.
	patience = 8 * time.Second
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

func newHandler(client *sessiond.Client, session string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hook", func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(deliveryHeader)
		if id == "" || len(id) > 128 {
			refuse(w, http.StatusBadRequest, deliveryHeader+" must name the delivery in at most 128 bytes")
			return
		}
		var body delivery
		if err := json.NewDecoder(io.LimitReader(r.Body, maxBody)).Decode(&body); err != nil {
			refuse(w, http.StatusBadRequest, `the body must be {"text": "..."}: `+err.Error())
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		sent, err := sessiond.Retry(ctx, client.Sessions.Send, &sessiondv1.SendRequest{
			SessionId: session, RequestId: requestPrefix + id, Text: body.Text,
			// A delivery is a job of its own: it waits for the turn that runs.
			Delivery: sessiondv1.Delivery_DELIVERY_NEXT_TURN,
		})
		if err != nil {
			refuseBecause(w, id, err)
			return
		}
		answer(w, http.StatusAccepted, accepted{sent.GetMessageId(), strconv.FormatInt(sent.GetSeq(), 10)})
	})
	return mux
}

// refuseBecause tells the sender whether delivering again can help.
func refuseBecause(w http.ResponseWriter, id string, err error) {
	status := http.StatusBadGateway
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
			status = http.StatusServiceUnavailable
		}
		if failure.RetryAfter != nil {
			w.Header().Set("Retry-After", strconv.Itoa(1+int(failure.RetryAfter.Seconds())))
		}
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
