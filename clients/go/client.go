package sessiond

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	sessiondv1 "sessiond.dev/sessiond/gen/go/sessiond/v1"
)

const (
	defaultDeadline = 30 * time.Second
	maxReceive      = 16 << 20
	window          = 4 << 20
)

// Client is a connection to one daemon. It is safe for concurrent use.
type Client struct {
	// Sessions, Attachments and Server are the generated stubs. Their unary calls get a deadline of 30 s
	// when the context has none; their errors are *Error, and io.EOF at the good end of a stream.
	Sessions    sessiondv1.SessionServiceClient
	Attachments sessiondv1.AttachmentServiceClient
	Server      sessiondv1.ServerServiceClient

	conn *grpc.ClientConn
}

// Option changes what Dial does.
type Option func(*settings)

type settings struct {
	endpoint Endpoint
	grpc     []grpc.DialOption
}

// WithAddress names the daemon: unix:///path, host:port or https://host:port.
func WithAddress(address string) Option { return func(s *settings) { s.endpoint.Address = address } }

// WithToken gives the bearer token of a TCP address.
func WithToken(token string) Option { return func(s *settings) { s.endpoint.Token = token } }

// WithTokenFile names the file that holds the token.
func WithTokenFile(path string) Option { return func(s *settings) { s.endpoint.TokenFile = path } }

// WithTLSCA names the PEM file that a https:// daemon is verified with.
func WithTLSCA(path string) Option { return func(s *settings) { s.endpoint.TLSCA = path } }

// WithEndpoint sets everything about the daemon at once; what is empty is still discovered.
func WithEndpoint(e Endpoint) Option { return func(s *settings) { s.endpoint = e } }

// WithGRPC adds options of grpc's own, such as interceptors or a stats handler.
func WithGRPC(options ...grpc.DialOption) Option {
	return func(s *settings) { s.grpc = append(s.grpc, options...) }
}

// Dial makes a client of the daemon that the options name, or else of the one that Discover finds. It does
// not wait for a connection: the first call makes it.
func Dial(options ...Option) (*Client, error) {
	var s settings
	for _, option := range options {
		option(&s)
	}
	e := Discover(s.endpoint)
	where, err := parseAddress(e.Address)
	if err != nil {
		return nil, err
	}
	security, err := transportSecurity(where, e)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(where.name, append(dialOptions(security), s.grpc...)...)
	if err != nil {
		return nil, fmt.Errorf("sessiond: %s: %w", e.Address, err)
	}
	return &Client{
		Sessions:    sessiondv1.NewSessionServiceClient(conn),
		Attachments: sessiondv1.NewAttachmentServiceClient(conn),
		Server:      sessiondv1.NewServerServiceClient(conn),
		conn:        conn,
	}, nil
}

// Close ends the connection and every call on it.
func (c *Client) Close() error { return c.conn.Close() }

func dialOptions(security []grpc.DialOption) []grpc.DialOption {
	return append(security,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceive)),
		// A long history comes in large responses: not to be stopped after every 64 KiB.
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		// A daemon that restarts is back within a second: grpc's own pace is made for the internet.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithChainUnaryInterceptor(unary),
		grpc.WithChainStreamInterceptor(stream),
	)
}

func unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultDeadline)
		defer cancel()
	}
	return wrap(invoke(ctx, method, req, reply, cc, opts...))
}

func stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	opened, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, wrap(err)
	}
	return typedStream{opened}, nil
}

// typedStream fails with *Error; io.EOF, the good end, stays.
type typedStream struct{ grpc.ClientStream }

func (s typedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == io.EOF {
		return err
	}
	return wrap(err)
}

func transportSecurity(where target, e Endpoint) ([]grpc.DialOption, error) {
	if where.unix {
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	var options []grpc.DialOption
	if e.Token != "" || e.TokenFile != "" {
		if !where.mayCarryToken() {
			plain := strings.TrimPrefix(where.name, "dns:///")
			return nil, fmt.Errorf("sessiond: the token would cross the network in the clear: write https://%s", plain)
		}
		options = append(options, grpc.WithPerRPCCredentials(bearer{text: e.Token, file: e.TokenFile}))
	}
	if !where.tls {
		return append(options, grpc.WithTransportCredentials(insecure.NewCredentials())), nil
	}
	config, err := tlsConfig(e)
	if err != nil {
		return nil, err
	}
	return append(options, grpc.WithTransportCredentials(credentials.NewTLS(config))), nil
}

func tlsConfig(e Endpoint) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.TLSCA != "" {
		pem, err := os.ReadFile(e.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("sessiond: the CA file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("sessiond: the CA file %s holds no PEM certificate", e.TLSCA)
		}
	}
	if e.TLSCert != "" || e.TLSKey != "" {
		pair, err := tls.LoadX509KeyPair(e.TLSCert, e.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("sessiond: the client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// bearer is the token of every call; a file is read each time, so a new token needs no new client.
type bearer struct{ text, file string }

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token := b.text
	if token == "" {
		content, err := os.ReadFile(b.file)
		if err != nil {
			return nil, status.Errorf(codes.Unauthenticated, "the token file can't be read: %v", err)
		}
		token = strings.TrimSpace(string(content))
		if token == "" {
			return nil, status.Errorf(codes.Unauthenticated, "the token file is empty: %s", b.file)
		}
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity is false because Dial has already refused to send a token in the clear to
// another machine.
func (b bearer) RequireTransportSecurity() bool { return false }
