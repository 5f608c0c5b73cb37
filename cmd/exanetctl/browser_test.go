package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// browser is a Chromium without a screen, driven by the DevTools protocol over a pair of
// pipes (--remote-debugging-pipe: JSON values that end with a zero byte).
type browser struct {
	t       *testing.T
	out     *os.File
	session string

	mu       sync.Mutex
	last     int
	waiting  map[int]chan json.RawMessage
	said     []string // messages on the console, exceptions, and violations of the policy
	requests []string
}

type devtools struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct{ Message string }
}

// openBrowser opens a page. It skips the test if there is no Chromium.
func openBrowser(t *testing.T, url string) *browser {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium-headless-shell", "chromium", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			program = p
			break
		}
	}
	if program == "" {
		lacking(t, "no Chromium: contrib/scripts/setup.sh test installs chromium-headless-shell")
	}
	in, toBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromBrowser, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--remote-debugging-pipe", "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--user-data-dir=" + t.TempDir()}
	if os.Geteuid() == 0 {
		args = append(args, "--no-sandbox") // Chromium has no sandbox for root
	}
	cmd := exec.Command(program, append(args, "about:blank")...)
	cmd.ExtraFiles = []*os.File{in, out} // descriptors 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	b := &browser{t: t, out: toBrowser, waiting: map[int]chan json.RawMessage{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(bufio.NewReader(fromBrowser))
	}()
	t.Cleanup(func() {
		toBrowser.Close() // it ends then
		// If it does not end, kill its process group.
		late := time.AfterFunc(patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Error(err)
		}
		late.Stop()
		<-read
		fromBrowser.Close()
		if t.Failed() {
			t.Logf("console: %q\nrequests: %q\nstandard error: %s", b.said, b.requests, errs.String())
		}
	})
	var target struct{ TargetID, SessionID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank", "width": 1280, "height": 900}, &target)
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &target)
	b.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	b.size(1280, 900)
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	return b
}

// lacking skips a test because a program is missing; with STRICT=1 the test fails.
func lacking(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("STRICT") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// read reads the browser's messages until it ends.
func (b *browser) read(r *bufio.Reader) {
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			b.mu.Lock()
			for _, ch := range b.waiting {
				close(ch)
			}
			b.waiting = nil
			b.mu.Unlock()
			return
		}
		var m devtools
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			b.t.Errorf("the browser says %q: %v", text, err)
			continue
		}
		b.mu.Lock()
		switch m.Method {
		case "":
			if m.Error != nil {
				b.said = append(b.said, "DevTools: "+m.Error.Message)
			}
			b.waiting[m.ID] <- m.Result
			delete(b.waiting, m.ID)
		case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
			b.said = append(b.said, string(m.Params))
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			if json.Unmarshal(m.Params, &p) == nil {
				b.requests = append(b.requests, p.Request.URL)
			}
		}
		b.mu.Unlock()
	}
}

func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	ch := make(chan json.RawMessage, 1)
	b.mu.Lock()
	if b.waiting == nil {
		b.mu.Unlock()
		b.t.Fatalf("%s: the browser has ended", method)
	}
	b.last++
	id := b.last
	b.waiting[id] = ch
	b.mu.Unlock()
	m := map[string]any{"id": id, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	text, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.out.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	select {
	case answer, ok := <-ch:
		if !ok || result != nil && json.Unmarshal(answer, result) != nil {
			b.t.Fatalf("%s answers %q", method, answer)
		}
	case <-time.After(patience):
		b.t.Fatalf("%s: no answer", method)
	}
}

// eval returns the value of an expression in the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return r.Result.Value
}

// until waits until an expression is true. An expression that fails is not true yet.
func (b *browser) until(expression string) {
	b.t.Helper()
	expression = "(() => { try { return (" + expression + ") } catch (e) { return String(e) } })()"
	deadline := time.Now().Add(patience)
	for {
		is := b.eval(expression)
		if is == true {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("never true: %s: %v; the page says %v", expression, is, b.eval("document.body.innerText"))
		}
		b.eval("new Promise(done => requestAnimationFrame(done))")
	}
}

// press sends a key by its DOM name.
func (b *browser) press(key, text string) {
	b.t.Helper()
	codes := map[string]int{" ": 32, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Enter": 13}
	p := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes[key]}
	if text != "" {
		p["text"] = text
	}
	b.call("Input.dispatchKeyEvent", p, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": codes[key]}, nil)
}

func (b *browser) size(width, height int) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
}

func (b *browser) colours(scheme string) {
	b.t.Helper()
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// shot returns a picture of the page, cut at a height if that is given. With PFD_SHOTS=DIR it
// also writes the picture to DIR/NAME.FORMAT.
func (b *browser) shot(name, format string, height int) []byte {
	b.t.Helper()
	var r struct{ Data string }
	p := map[string]any{"format": format, "captureBeyondViewport": true}
	if height > 0 {
		p["clip"] = map[string]any{"x": 0, "y": 0, "width": b.eval("innerWidth"), "height": height, "scale": 1}
	}
	b.call("Page.captureScreenshot", p, &r)
	picture, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if dir := os.Getenv("PFD_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+"."+format), picture, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	return picture
}
