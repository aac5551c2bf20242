package sessiond

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Endpoint says where a daemon is and what it wants to see. Discover makes one.
type Endpoint struct {
	// Address is unix:///path, host:port or https://host:port.
	Address string
	// Token is the bearer token; it wins over TokenFile. Neither is sent over a unix socket.
	Token string
	// TokenFile holds the token; it is read again for every call.
	TokenFile string
	// TLSCA is the PEM file that a https:// daemon is verified with; empty: the system's roots.
	TLSCA string
	// TLSCert and TLSKey are the client's own certificate (PEM files), for daemons that ask for one.
	TLSCert, TLSKey string
}

// served is what a daemon writes to address.json.
type served struct {
	Unix      string `json:"unix"`
	TCP       string `json:"tcp"`
	TokenFile string `json:"token_file"`
	TLSCA     string `json:"tls_ca"`
}

// RuntimeDir is the folder with the daemon's socket, token and address.json: $SESSIOND_RUNTIME_DIR, else
// $XDG_RUNTIME_DIR/sessiond, else "run" in DataDir.
func RuntimeDir() string {
	if own := os.Getenv("SESSIOND_RUNTIME_DIR"); own != "" {
		return own
	}
	if base := os.Getenv("XDG_RUNTIME_DIR"); base != "" {
		return filepath.Join(base, "sessiond")
	}
	return filepath.Join(DataDir(), "run")
}

// DataDir is the daemon's data folder: $SESSIOND_DATA_DIR, else $XDG_DATA_HOME/sessiond, else
// ~/.local/share/sessiond.
func DataDir() string {
	if own := os.Getenv("SESSIOND_DATA_DIR"); own != "" {
		return own
	}
	if base := os.Getenv("XDG_DATA_HOME"); base != "" {
		return filepath.Join(base, "sessiond")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "/"
	}
	return filepath.Join(home, ".local", "share", "sessiond")
}

// Discover fills in what given leaves empty: from SESSIOND_ADDRESS, SESSIOND_TOKEN or SESSIOND_TOKEN_FILE,
// SESSIOND_TLS_CA, SESSIOND_TLS_CERT and SESSIOND_TLS_KEY, else from what the running daemon wrote to its
// runtime folder.
func Discover(given Endpoint) Endpoint {
	folder := RuntimeDir()
	found := readServed(folder)
	e := given
	if e.Address == "" {
		e.Address = os.Getenv("SESSIOND_ADDRESS")
	}
	if e.Address == "" {
		e.Address = found.address(folder)
	}
	if e.Token == "" && e.TokenFile == "" {
		e.Token = os.Getenv("SESSIOND_TOKEN")
	}
	if e.Token == "" && e.TokenFile == "" {
		e.TokenFile = first(os.Getenv("SESSIOND_TOKEN_FILE"), found.TokenFile, existing(filepath.Join(folder, "token")))
	}
	e.TLSCA = first(e.TLSCA, os.Getenv("SESSIOND_TLS_CA"), found.TLSCA)
	e.TLSCert = first(e.TLSCert, os.Getenv("SESSIOND_TLS_CERT"))
	e.TLSKey = first(e.TLSKey, os.Getenv("SESSIOND_TLS_KEY"))
	return e
}

func (s served) address(folder string) string {
	switch {
	case s.Unix != "":
		return s.Unix
	case s.TCP != "" && s.TLSCA != "" && !strings.Contains(s.TCP, "://"):
		return "https://" + s.TCP
	case s.TCP != "":
		return s.TCP
	}
	return "unix://" + filepath.Join(folder, "sessiond.sock")
}

func readServed(folder string) served {
	var found served
	text, err := os.ReadFile(filepath.Join(folder, "address.json"))
	if err != nil || json.Unmarshal(text, &found) != nil {
		return served{}
	}
	return found
}

func first(candidates ...string) string {
	for _, c := range candidates {
		if c != "" {
			return c
		}
	}
	return ""
}

func existing(path string) string {
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// target is an address in the words of the transport.
type target struct {
	// name is what grpc dials.
	name string
	unix bool
	tls  bool
}

var errAddress = errors.New("write unix:///path, host:port or https://host:port")

func parseAddress(address string) (target, error) {
	bad := func() (target, error) { return target{}, fmt.Errorf("sessiond: address %q: %w", address, errAddress) }
	path, isUnix := strings.CutPrefix(address, "unix:")
	if isUnix || strings.HasPrefix(address, "/") {
		path = strings.TrimPrefix(path, "//")
		if !filepath.IsAbs(path) {
			return bad()
		}
		return target{name: "unix://" + path, unix: true}, nil
	}
	rest, secure := strings.CutPrefix(address, "https://")
	if !secure {
		rest = strings.TrimPrefix(rest, "http://")
	}
	rest = strings.TrimSuffix(rest, "/")
	host, port, err := net.SplitHostPort(rest)
	if err != nil || host == "" || port == "" || strings.ContainsAny(rest, "/ ") {
		return bad()
	}
	// dns resolves names; passthrough would hand "localhost" to one address only.
	return target{name: "dns:///" + rest, tls: secure}, nil
}

// mayCarryToken tells whether a token stays on this machine or is encrypted on its way.
func (t target) mayCarryToken() bool {
	if t.unix || t.tls {
		return true
	}
	host, _, _ := net.SplitHostPort(strings.TrimPrefix(t.name, "dns:///"))
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
