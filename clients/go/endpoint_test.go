package sessiond

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// clearEnvironment leaves no daemon to be found but the one under the returned runtime folder.
func clearEnvironment(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{
		"SESSIOND_ADDRESS", "SESSIOND_TOKEN", "SESSIOND_TOKEN_FILE", "SESSIOND_TLS_CA", "SESSIOND_TLS_CERT",
		"SESSIOND_TLS_KEY", "SESSIOND_DATA_DIR", "XDG_RUNTIME_DIR", "XDG_DATA_HOME",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("SESSIOND_RUNTIME_DIR", folder)
	return folder
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDiscoverAddress(t *testing.T) {
	for name, c := range map[string]struct{ given, env, file, want string }{
		"explicit":     {given: "h:1", env: "h:2", file: `{"tcp":"h:3"}`, want: "h:1"},
		"environment":  {env: "h:2", file: `{"tcp":"h:3"}`, want: "h:2"},
		"unix first":   {file: `{"unix":"unix:/a.sock","tcp":"h:3"}`, want: "unix:/a.sock"},
		"tcp":          {file: `{"tcp":"h:3"}`, want: "h:3"},
		"tls":          {file: `{"tcp":"h:3","tls_ca":"/ca"}`, want: "https://h:3"},
		"broken file":  {file: `{`, want: "unix://RUN/sessiond.sock"},
		"nothing":      {want: "unix://RUN/sessiond.sock"},
		"wrong shapes": {file: `{"unix":1}`, want: "unix://RUN/sessiond.sock"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := clearEnvironment(t)
			t.Setenv("SESSIOND_ADDRESS", c.env)
			if c.file != "" {
				write(t, filepath.Join(folder, "address.json"), c.file)
			}
			want := strings.ReplaceAll(c.want, "RUN", folder)
			if got := Discover(Endpoint{Address: c.given}).Address; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestDiscoverToken(t *testing.T) {
	folder := clearEnvironment(t)
	if got := Discover(Endpoint{}); got.Token != "" || got.TokenFile != "" {
		t.Errorf("found a token where there is none: %+v", got)
	}
	write(t, filepath.Join(folder, "token"), "x")
	if got := Discover(Endpoint{}).TokenFile; got != filepath.Join(folder, "token") {
		t.Errorf("the runtime folder's token: got %q", got)
	}
	write(t, filepath.Join(folder, "address.json"), `{"token_file":"/told"}`)
	if got := Discover(Endpoint{}).TokenFile; got != "/told" {
		t.Errorf("address.json: got %q", got)
	}
	t.Setenv("SESSIOND_TOKEN_FILE", "/env")
	if got := Discover(Endpoint{}).TokenFile; got != "/env" {
		t.Errorf("SESSIOND_TOKEN_FILE: got %q", got)
	}
	t.Setenv("SESSIOND_TOKEN", "text")
	if got := Discover(Endpoint{}); got.Token != "text" || got.TokenFile != "" {
		t.Errorf("SESSIOND_TOKEN: got %+v", got)
	}
	if got := Discover(Endpoint{TokenFile: "/mine"}); got.Token != "" || got.TokenFile != "/mine" {
		t.Errorf("explicit file: got %+v", got)
	}
}

func TestFolders(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("SESSIOND_RUNTIME_DIR", "")
	t.Setenv("HOME", "/home/x")
	steps := []struct{ name, value, want string }{
		{"HOME", "/home/x", "/home/x/.local/share/sessiond/run"},
		{"XDG_DATA_HOME", "/xdg", "/xdg/sessiond/run"},
		{"SESSIOND_DATA_DIR", "/data", "/data/run"},
		{"XDG_RUNTIME_DIR", "/user", "/user/sessiond"},
		{"SESSIOND_RUNTIME_DIR", "/own", "/own"},
	}
	for _, step := range steps {
		t.Setenv(step.name, step.value)
		if got := RuntimeDir(); got != step.want {
			t.Errorf("with %s: got %q, want %q", step.name, got, step.want)
		}
	}
}

func TestParseAddress(t *testing.T) {
	for address, want := range map[string]target{
		"unix:///a/b":        {name: "unix:///a/b", unix: true},
		"unix:/a/b":          {name: "unix:///a/b", unix: true},
		"/a/b":               {name: "unix:///a/b", unix: true},
		"localhost:7":        {name: "dns:///localhost:7"},
		"http://localhost:7": {name: "dns:///localhost:7"},
		"https://h:7/":       {name: "dns:///h:7", tls: true},
		"[::1]:7":            {name: "dns:///[::1]:7"},
	} {
		got, err := parseAddress(address)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", address, got, err)
		}
	}
	for _, address := range []string{"", "host", "unix:relative", "unix://relative", ":7", "host:", "https://h/x:7", "a b:7"} {
		if got, err := parseAddress(address); err == nil {
			t.Errorf("%q was taken as %+v", address, got)
		}
	}
}

func TestTokenStaysOnTheMachine(t *testing.T) {
	clearEnvironment(t)
	for address, allowed := range map[string]bool{
		"127.0.0.1:7": true, "[::1]:7": true, "localhost:7": true, "https://example.test:7": true,
		"example.test:7": false, "10.0.0.1:7": false,
	} {
		client, err := Dial(WithAddress(address), WithToken("secret"))
		if (err == nil) != allowed {
			t.Errorf("%s: %v", address, err)
		}
		if err == nil {
			_ = client.Close()
		} else if strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "https://"+address) {
			t.Errorf("%s: the error does not help: %v", address, err)
		}
	}
}
