package attach

import "testing"

func TestDefaultSocket(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		uid  int
		want string // "" an error
	}{
		{"service", map[string]string{"RUNTIME_DIRECTORY": "/run/x", "XDG_RUNTIME_DIR": "/u"}, 0, "/run/x/pfd.sock"},
		{"service with two directories", map[string]string{"RUNTIME_DIRECTORY": "/run/x:/run/y"}, 7, "/run/x/pfd.sock"},
		{"root", map[string]string{"XDG_RUNTIME_DIR": "/u"}, 0, "/run/exanet/pfd.sock"},
		{"user", map[string]string{"XDG_RUNTIME_DIR": "/u"}, 7, "/u/exanet/pfd.sock"},
		{"nothing", nil, 7, ""},
	} {
		got, err := defaultSocket(func(k string) string { return tt.env[k] }, tt.uid)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}
