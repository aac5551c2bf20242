// Conformance carries out the steps of one conformance document; tests/clients/README.md describes it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	sessiond "sessiond.dev/sessiond/clients/go"
)

type document struct {
	Connection connection        `json:"connection"`
	Steps      []json.RawMessage `json:"steps"`
}

type connection struct {
	Address   string `json:"address"`
	Token     string `json:"token"`
	TokenFile string `json:"token_file"`
	TLSCA     string `json:"tls_ca"`
}

// step is any step; each action reads its own fields.
type step struct {
	ID         string          `json:"id"`
	Do         string          `json:"do"`
	Method     string          `json:"method"`
	Request    json.RawMessage `json:"request"`
	Retry      bool            `json:"retry"`
	DeadlineMs int64           `json:"deadline_ms"`

	SessionID    string            `json:"session_id"`
	AfterSeq     int64             `json:"after_seq,string"`
	TranscriptID string            `json:"transcript_id"`
	Until        until             `json:"until"`
	CancelAfter  int               `json:"cancel_after"`
	Resume       *bool             `json:"resume"`
	WatchdogMs   int64             `json:"watchdog_ms"`
	Announce     []json.RawMessage `json:"announce"`
	Keep         int               `json:"keep"`

	Ref        string `json:"ref"`
	Size       int    `json:"size"`
	ChunkBytes int    `json:"chunk_bytes"`
	MediaType  string `json:"media_type"`
	Filename   string `json:"filename"`

	Ms int64 `json:"ms"`
}

type object = map[string]any

type program struct {
	client  *sessiond.Client
	results object
	out     *json.Encoder
}

func (p *program) run(steps []json.RawMessage) error {
	for _, raw := range steps {
		s, err := p.resolve(raw)
		if err != nil {
			return err
		}
		started := time.Now()
		result, err := p.do(s)
		if err != nil {
			return fmt.Errorf("step %s: %w", s.ID, err)
		}
		result["elapsed_ms"] = time.Since(started).Milliseconds()
		// Through JSON, so that references find the same shapes everywhere.
		text, err := json.Marshal(result)
		if err != nil {
			return err
		}
		var plain any
		if err := json.Unmarshal(text, &plain); err != nil {
			return err
		}
		p.results[s.ID] = plain
	}
	return p.out.Encode(object{"results": p.results})
}

func (p *program) resolve(raw json.RawMessage) (*step, error) {
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	tree, err := p.replace(tree)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	s := &step{DeadlineMs: -1}
	return s, json.Unmarshal(text, s)
}

// replace puts in place of every "$path" what stands there in the results so far.
func (p *program) replace(value any) (any, error) {
	var err error
	switch v := value.(type) {
	case object:
		for key := range v {
			if v[key], err = p.replace(v[key]); err != nil {
				return nil, err
			}
		}
	case []any:
		for i := range v {
			if v[i], err = p.replace(v[i]); err != nil {
				return nil, err
			}
		}
	case string:
		if path, isReference := strings.CutPrefix(v, "$"); isReference {
			return lookUp(p.results, path)
		}
	}
	return value, nil
}

func lookUp(tree any, path string) (any, error) {
	for part := range strings.SplitSeq(path, ".") {
		switch v := tree.(type) {
		case object:
			found, there := v[part]
			if !there {
				return nil, fmt.Errorf("nothing stands at $%s", path)
			}
			tree = found
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(v) {
				return nil, fmt.Errorf("nothing stands at $%s", path)
			}
			tree = v[i]
		default:
			return nil, fmt.Errorf("nothing stands at $%s", path)
		}
	}
	return tree, nil
}

func (p *program) do(s *step) (object, error) {
	switch s.Do {
	case "call":
		return p.call(s)
	case "subscribe":
		return p.subscribe(s)
	case "upload":
		return p.upload(s), nil
	case "download":
		return p.download(s), nil
	case "sleep":
		time.Sleep(time.Duration(s.Ms) * time.Millisecond)
		return object{}, nil
	}
	return nil, fmt.Errorf("unknown action %q", s.Do)
}

func (s *step) deadline(fallback time.Duration) time.Duration {
	if s.DeadlineMs < 0 {
		return fallback
	}
	return time.Duration(s.DeadlineMs) * time.Millisecond
}

// caller makes one unary call with a request in JSON.
type caller func(ctx context.Context, s *step) (proto.Message, error)

func plain[Req any, Resp proto.Message, P interface {
	*Req
	proto.Message
}](call func(context.Context, P, ...grpc.CallOption) (Resp, error)) caller {
	return func(ctx context.Context, s *step) (proto.Message, error) {
		request := P(new(Req))
		if err := parse(s, request); err != nil {
			return nil, err
		}
		return call(ctx, request)
	}
}

func mutating[Req any, Resp proto.Message, P interface {
	*Req
	sessiond.Mutating
}](call func(context.Context, P, ...grpc.CallOption) (Resp, error)) caller {
	return func(ctx context.Context, s *step) (proto.Message, error) {
		request := P(new(Req))
		if err := parse(s, request); err != nil {
			return nil, err
		}
		if s.Retry {
			return sessiond.Retry(ctx, call, request)
		}
		return call(ctx, request)
	}
}

func parse(s *step, request proto.Message) error {
	if len(s.Request) == 0 {
		return nil
	}
	return protojson.Unmarshal(s.Request, request)
}

func (p *program) call(s *step) (object, error) {
	c := p.client
	calls := map[string]caller{
		"CreateSession":   mutating(c.Sessions.CreateSession),
		"GetSession":      plain(c.Sessions.GetSession),
		"ListSessions":    plain(c.Sessions.ListSessions),
		"UpdateSession":   mutating(c.Sessions.UpdateSession),
		"DeleteSession":   mutating(c.Sessions.DeleteSession),
		"ListEvents":      plain(c.Sessions.ListEvents),
		"Send":            mutating(c.Sessions.Send),
		"EditMessage":     mutating(c.Sessions.EditMessage),
		"MoveMessage":     mutating(c.Sessions.MoveMessage),
		"Unqueue":         mutating(c.Sessions.Unqueue),
		"Answer":          mutating(c.Sessions.Answer),
		"Control":         mutating(c.Sessions.Control),
		"WriteAttachment": plain(c.Attachments.WriteAttachment),
		"GetAttachment":   plain(c.Attachments.GetAttachment),
		"GetServerInfo":   plain(c.Server.GetServerInfo),
	}
	call, known := calls[s.Method]
	if !known {
		return nil, fmt.Errorf("unknown method %q", s.Method)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.deadline(30*time.Second))
	defer cancel()
	response, err := call(ctx, s)
	var failure *sessiond.Error
	if errors.As(err, &failure) {
		return object{"error": errorJSON(failure)}, nil
	}
	if err != nil {
		return nil, err
	}
	text, err := toJSON(response)
	return object{"response": text}, err
}

func toJSON(message proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
}

func errorJSON(e *sessiond.Error) object {
	violations := make([]object, 0, len(e.Violations))
	for _, v := range e.Violations {
		violations = append(violations, object{"field": v.Field, "description": v.Description})
	}
	found := object{"code": sessiond.CodeName(e.Code), "message": e.Message, "reason": e.Reason, "violations": violations}
	if e.Metadata != nil {
		found["metadata"] = e.Metadata
	}
	if e.RetryAfter != nil {
		found["retry_delay_ms"] = e.RetryAfter.Milliseconds()
	}
	return found
}

func (p *program) upload(s *step) object {
	content := make([]byte, s.Size)
	for i := range content {
		content[i] = byte(i % 251)
	}
	stored, err := p.client.Upload(context.Background(), sessiond.Upload{
		SessionID: s.SessionID, Content: strings.NewReader(string(content)), MediaType: s.MediaType,
		Filename: s.Filename, ChunkBytes: s.ChunkBytes,
	})
	if result, failed := failure(err); failed {
		return result
	}
	return object{"ref": stored.GetRef(), "size_bytes": strconv.FormatInt(stored.GetSizeBytes(), 10)}
}

func (p *program) download(s *step) object {
	sink := newSink()
	size, err := p.client.Download(context.Background(), s.SessionID, s.Ref, sink)
	if result, failed := failure(err); failed {
		return result
	}
	return object{"size_bytes": strconv.FormatInt(size, 10), "sha256": sink.sum(), "chunks": sink.writes}
}

func failure(err error) (object, bool) {
	var typed *sessiond.Error
	if errors.As(err, &typed) {
		return object{"error": errorJSON(typed)}, true
	}
	if err != nil {
		return object{"error": object{"code": "UNKNOWN", "reason": "", "message": err.Error()}}, true
	}
	return nil, false
}

func read() ([]byte, error) {
	if len(os.Args) > 1 {
		return os.ReadFile(os.Args[1])
	}
	return io.ReadAll(os.Stdin)
}

func run() error {
	text, err := read()
	if err != nil {
		return err
	}
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	client, err := sessiond.Dial(sessiond.WithEndpoint(sessiond.Endpoint{
		Address: d.Connection.Address, Token: d.Connection.Token,
		TokenFile: d.Connection.TokenFile, TLSCA: d.Connection.TLSCA,
	}))
	if err != nil {
		return err
	}
	defer client.Close()
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	p := &program{client: client, results: object{}, out: out}
	return p.run(d.Steps)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}
