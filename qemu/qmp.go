package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrQMP reports that QEMU refuses a command or has ended (QEMU Machine Protocol
// Specification).
var ErrQMP = errors.New("QEMU's monitor")

// monitor is a connection to QEMU's monitor. It is not safe for concurrent use.
type monitor struct {
	conn net.Conn
	dec  *json.Decoder
}

// monitorTime limits one command: QEMU holds its lock while a device answers. Defined by this
// project.
const monitorTime = 60 * time.Second

// dialMonitor connects to the monitor. It waits until QEMU listens, while alive returns nil.
func dialMonitor(ctx context.Context, path string, alive func() error) (*monitor, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			m := &monitor{conn: conn, dec: json.NewDecoder(conn)}
			var greeting struct {
				QMP *json.RawMessage `json:"QMP"`
			}
			err := conn.SetDeadline(time.Now().Add(monitorTime))
			if err == nil {
				err = m.dec.Decode(&greeting)
			}
			if err == nil && greeting.QMP == nil {
				err = fmt.Errorf("%s is not a monitor", path)
			}
			if err == nil {
				err = m.do("qmp_capabilities", nil, nil)
			}
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%w: %w", ErrQMP, err), conn.Close())
			}
			return m, nil
		}
		if err := alive(); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrQMP, errors.Join(ctx.Err(), err))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (m *monitor) close() { _ = m.conn.Close() }

// do executes a command; result may be nil. It skips events.
func (m *monitor) do(command string, arguments, result any) error {
	request := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}{command, arguments}
	b, err := json.Marshal(request)
	if err != nil {
		return err
	}
	err = m.conn.SetDeadline(time.Now().Add(monitorTime))
	if err == nil {
		_, err = m.conn.Write(append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrQMP, command, err)
	}
	for {
		var answer struct {
			Event  string          `json:"event"`
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		switch err := m.dec.Decode(&answer); {
		case err != nil:
			return fmt.Errorf("%w: %s: %w", ErrQMP, command, err)
		case answer.Event != "":
			continue
		case answer.Error != nil:
			return fmt.Errorf("%w: %s: %s", ErrQMP, command, answer.Error.Desc)
		case result == nil:
			return nil
		default:
			if err := json.Unmarshal(answer.Return, result); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrQMP, command, err)
			}
			return nil
		}
	}
}

// status returns QEMU's run state (qapi/run-state.json, RunState).
func (m *monitor) status() (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := m.do("query-status", nil, &s)
	return s.Status, err
}

// mapped makes migrations to and from files store each page at a fixed offset (QEMU,
// docs/devel/migration/mapped-ram.rst).
func (m *monitor) mapped() error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	return m.do("migrate-set-capabilities", map[string]any{"capabilities": []capability{{"mapped-ram", true}}}, nil)
}

// save stops the guest and saves its state in a file.
func (m *monitor) save(ctx context.Context, path string) error {
	err := m.do("stop", nil, nil)
	if err == nil {
		err = m.mapped()
	}
	if err == nil {
		err = m.do("migrate", map[string]string{"uri": "file:" + path}, nil)
	}
	for err == nil {
		var s struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err = m.do("query-migrate", nil, &s); err != nil {
			break
		}
		switch s.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("%w: saving the guest: %s", ErrQMP, s.Error)
		}
		err = pause(ctx)
	}
	return err
}

// restore loads a guest's state from a file and resumes the guest.
func (m *monitor) restore(ctx context.Context, path string) error {
	err := m.mapped()
	if err == nil {
		err = m.do("migrate-incoming", map[string]string{"uri": "file:" + path}, nil)
	}
	for err == nil {
		var state string
		if state, err = m.status(); err != nil {
			break
		}
		switch state {
		case "running":
			return nil
		case "inmigrate":
			err = pause(ctx)
		default: // the guest was stopped when it was saved
			if err = m.do("cont", nil, nil); err == nil {
				return nil
			}
		}
	}
	return fmt.Errorf("restoring a guest: %w", err)
}

// plug adds a node, served at a vfio-user socket, below a root port.
func (m *monitor) plug(id, port, socket string) error {
	return m.do("device_add", map[string]any{
		"driver": "vfio-user-pci", "id": id, "bus": port,
		"socket": map[string]string{"path": socket, "type": "unix"},
	}, nil)
}

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}
