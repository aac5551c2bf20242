package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"

	sessiond "sessiond.dev/sessiond/clients/go"
	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

// until is when a subscribe step has seen enough: the first that holds.
type until struct {
	Count      *int   `json:"count"`
	Seq        string `json:"seq"`
	Kind       string `json:"kind"`
	Heartbeats *int   `json:"heartbeats"`
	Reconnects *int   `json:"reconnects"`
	CaughtUp   bool   `json:"caught_up"`
}

// watch is one subscribe step under way.
type watch struct {
	p            *program
	s            *step
	subscription *sessiond.Subscription

	seq, first     int64
	begun          bool
	gaps, repeats  int
	count          int
	kinds          map[string]int
	text           hash.Hash
	textBytes      int
	last           *sessiondv1.Event
	kept           []object
	cancelled      bool
	announcedCatch bool
}

func (p *program) subscribe(s *step) (object, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.deadline(60*time.Second))
	defer cancel()
	options := []sessiond.SubscribeOption{sessiond.AfterSeq(s.AfterSeq), sessiond.InTranscript(s.TranscriptID)}
	if s.Resume != nil && !*s.Resume {
		options = append(options, sessiond.WithoutResume())
	}
	if s.WatchdogMs > 0 {
		options = append(options, sessiond.WithWatchdog(time.Duration(s.WatchdogMs)*time.Millisecond))
	}
	w := &watch{
		p: p, s: s, seq: s.AfterSeq, kinds: map[string]int{}, text: sha256.New(), kept: []object{},
		subscription: p.client.Subscribe(ctx, s.SessionID, options...),
	}
	end, err := w.read()
	if err != nil {
		return nil, err
	}
	return w.result(end)
}

// read follows the subscription; a failure of it is an end like another.
func (w *watch) read() (object, error) {
	for response, err := range w.subscription.Batches() {
		if result, failed := failure(err); failed {
			return w.ended(result["error"].(object)), nil
		}
		for _, event := range response.GetEvents() {
			if err := w.take(event); err != nil {
				return nil, err
			}
			if w.enough(sessiond.Kind(event)) {
				return object{"end": "DONE"}, nil
			}
		}
		if w.subscription.CaughtUp() && !w.announcedCatch && w.announces(`"caught_up"`) {
			w.announcedCatch = true
			if err := w.progress("caught_up", true); err != nil {
				return nil, err
			}
		}
		if w.enough("") || w.s.Until.CaughtUp && w.subscription.CaughtUp() {
			return object{"end": "DONE"}, nil
		}
	}
	return object{"end": "OK"}, nil
}

func (w *watch) ended(failed object) object {
	if w.cancelled && failed["code"] == sessiond.CodeName(codes.Canceled) {
		return object{"end": "CANCELLED"}
	}
	return object{"end": failed["code"], "error": failed}
}

func (w *watch) take(event *sessiondv1.Event) error {
	seq := event.GetSeq()
	w.count++
	if seq <= w.seq {
		w.repeats++
	} else if seq != w.seq+1 && (w.begun || w.s.AfterSeq != 0) {
		w.gaps++
	}
	if !w.begun {
		w.begun, w.first = true, seq
	}
	w.seq, w.last = seq, event
	w.kinds[sessiond.Kind(event)]++
	if text := event.GetAssistantText(); text != nil {
		w.text.Write([]byte(text.GetDelta()))
		w.textBytes += len(text.GetDelta())
	}
	if w.count <= w.s.Keep {
		shape, err := eventJSON(event)
		if err != nil {
			return err
		}
		w.kept = append(w.kept, shape)
	}
	if w.count == w.s.CancelAfter {
		w.cancelled = true
		w.subscription.Close()
	}
	if w.announces(strconv.Itoa(w.count)) {
		return w.progress("events", w.count)
	}
	return nil
}

func (w *watch) announces(what string) bool {
	for _, wanted := range w.s.Announce {
		if string(bytes.TrimSpace(wanted)) == what {
			return true
		}
	}
	return false
}

func (w *watch) progress(key string, value any) error {
	return w.p.out.Encode(object{"progress": object{"step": w.s.ID, key: value}})
}

func (w *watch) enough(kind string) bool {
	u := w.s.Until
	seq, err := strconv.ParseInt(u.Seq, 10, 64)
	switch {
	case u.Count != nil && w.count >= *u.Count,
		err == nil && w.seq >= seq,
		kind != "" && kind == u.Kind,
		u.Heartbeats != nil && w.subscription.Heartbeats() >= *u.Heartbeats,
		u.Reconnects != nil && w.subscription.Reconnects() >= *u.Reconnects:
		return true
	}
	return false
}

func (w *watch) result(end object) (object, error) {
	last, err := eventJSON(w.last)
	if err != nil {
		return nil, err
	}
	result := object{
		"count": w.count, "gaps": w.gaps, "repeats": w.repeats, "kinds": w.kinds,
		"last_seq": strconv.FormatInt(w.seq, 10), "head_seq": strconv.FormatInt(w.subscription.HeadSeq(), 10),
		"first_seq": strconv.FormatInt(w.subscription.FirstSeq(), 10), "transcript_id": w.subscription.TranscriptID(),
		"caught_up": w.subscription.CaughtUp(), "heartbeats": w.subscription.Heartbeats(),
		"reconnects": w.subscription.Reconnects(), "text_bytes": w.textBytes,
		"text_sha256": hex.EncodeToString(w.text.Sum(nil)), "last": last, "events": w.kept,
	}
	if w.begun {
		result["first"] = strconv.FormatInt(w.first, 10)
	}
	for key, value := range end {
		result[key] = value
	}
	return result, nil
}

func eventJSON(event *sessiondv1.Event) (object, error) {
	if event == nil {
		return object{}, nil
	}
	kind := sessiond.Kind(event)
	body := json.RawMessage("{}")
	if kind != sessiond.UnknownKind {
		m := event.ProtoReflect()
		field := m.Descriptor().Fields().ByName(protoreflect.Name(kind))
		var err error
		if body, err = toJSON(m.Get(field).Message().Interface()); err != nil {
			return nil, err
		}
	}
	return object{
		"seq": strconv.FormatInt(event.GetSeq(), 10), "kind": kind, "request_id": event.GetRequestId(),
		"ignorable": event.GetIgnorable(), "actor": event.GetActor(), "body": body,
	}, nil
}

// sink hashes what is written and counts the pieces.
type sink struct {
	hash.Hash
	writes int
}

func newSink() *sink { return &sink{Hash: sha256.New()} }

func (s *sink) Write(data []byte) (int, error) {
	s.writes++
	return s.Hash.Write(data)
}

func (s *sink) sum() string { return hex.EncodeToString(s.Hash.Sum(nil)) }
