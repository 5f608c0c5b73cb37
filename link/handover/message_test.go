package handover

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/exanet/pfd/device"
)

// golden are all kinds of messages, and their packets.
var golden = []struct {
	m    Message
	text string
}{
	{Message{Table: &Table{Cluster: "c", Self: "a", TLS: true, Revoked: []string{"1f"}, Hosts: []Host{
		{Name: "a", Address: "192.0.2.1:9480", Nodes: [2]device.NodeID{0, 3}, PDIDs: [2]device.PDID{0x100, 0x1ff}},
		{Name: "b", Address: "[2001:db8::1]:1", Nodes: [2]device.NodeID{4, 4}, PDIDs: [2]device.PDID{0x200, 0x2ff}, UDP: true},
	}}}, `{"table":{"cluster":"c","self":"a","hosts":[` +
		`{"name":"a","address":"192.0.2.1:9480","nodes":[0,3],"pdids":[256,511]},` +
		`{"name":"b","address":"[2001:db8::1]:1","nodes":[4,4],"pdids":[512,767],"udp":true}],"revoked":["1f"],"tls":true}}`},
	{Message{Socket: &Socket{}}, `{"socket":{}}`},
	{Message{Socket: &Socket{Dialed: "b", UDP: true}}, `{"socket":{"dialed":"b","udp":true}}`},
	{Message{Failed: &Failed{Host: "b", Text: "no route"}}, `{"failed":{"host":"b","text":"no route"}}`},
	{Message{Want: &Want{Host: "b"}}, `{"want":{"host":"b"}}`},
	{Message{Refused: &Refused{Text: "no"}}, `{"refused":{"text":"no"}}`},
	{Message{State: &State{Host: "b", State: "up"}}, `{"state":{"host":"b","state":"up"}}`},
}

func TestGolden(t *testing.T) {
	for _, g := range golden {
		b, err := g.m.Encode()
		if err != nil || string(b) != g.text {
			t.Errorf("encoded %s (%v), want %s", b, err, g.text)
		}
		m, err := Decode([]byte(g.text))
		if err != nil || !reflect.DeepEqual(*m, g.m) {
			t.Errorf("%s decodes to %+v, %v", g.text, m, err)
		}
	}
}

func TestBadMessages(t *testing.T) {
	host := func(s string) string {
		return `{"table":{"cluster":"c","self":"a","tls":false,"hosts":[` + s + `]}}`
	}
	many := strings.Repeat(`{"name":"a","address":"a:1","nodes":[0,0],"pdids":[1,1]},`, MaxHosts+1)
	for _, c := range []struct{ packet, want string }{
		{``, "EOF"},
		{`[]`, "cannot unmarshal"},
		{`{}`, "0 kinds"},
		{`null`, "0 kinds"},
		{`{"want":{"host":"a"},"socket":{}}`, "2 kinds"},
		{`{"want":{"host":"a"}}{}`, "follows the object"},
		{`{"want":{"host":"a","x":1}}`, "unknown field"},
		{`{"lease":{}}`, "unknown field"},
		{`{"want":{"host":""}}`, "want 1 to 63 letters"},
		{`{"want":{"host":"-a"}}`, "want 1 to 63 letters"},
		{`{"want":{"host":"a..b"}}`, "want 1 to 63 letters"},
		{`{"want":{"host":"a."}}`, "want 1 to 63 letters"},
		{`{"want":{"host":"a b"}}`, "want 1 to 63 letters"},
		{`{"want":{"host":"` + strings.Repeat("a", 64) + `"}}`, "want 1 to 63 letters"},
		{`{"socket":{"dialed":"\n"}}`, "want 1 to 63 letters"},
		{`{"state":{"host":"a","state":""}}`, "want 1 to 63 letters"},
		{`{"refused":{"text":"` + strings.Repeat("a", MaxText+1) + `"}}`, "at most 1024"},
		{`{"failed":{"host":"a","text":"` + strings.Repeat("a", MaxText+1) + `"}}`, "at most 1024"},
		{`{"refused":{"text":"` + strings.Repeat("a", MaxMessage) + `"}}`, "at most 65536"},
		{host(``), "not in the table"},
		{host(`{"name":"b","address":"b:1","nodes":[0,0],"pdids":[1,1]}`), "not in the table"},
		{host(`{"name":"a","address":"a","nodes":[0,0],"pdids":[1,1]}`), "HOST:PORT"},
		{host(`{"name":"a","address":":1","nodes":[0,0],"pdids":[1,1]}`), "HOST:PORT"},
		{host(`{"name":"a","address":"a:0","nodes":[0,0],"pdids":[1,1]}`), "1 to 65535"},
		{host(`{"name":"a","address":"a:http","nodes":[0,0],"pdids":[1,1]}`), "1 to 65535"},
		{host(`{"name":"a","address":"a:1","nodes":[1,0],"pdids":[1,1]}`), "nodes 1-0"},
		{host(`{"name":"a","address":"a:1","nodes":[65534,65535],"pdids":[1,1]}`), "nodes 65534-65535"},
		{host(`{"name":"a","address":"a:1","nodes":[1,65],"pdids":[1,1]}`), "at most 64 nodes"},
		{host(`{"name":"a","address":"a:1","nodes":[0,-1],"pdids":[1,1]}`), "cannot unmarshal"},
		{host(`{"name":"a","address":"a:1","nodes":[0,0],"pdids":[0,1]}`), "pdids 0x0-0x1"},
		{host(`{"name":"a","address":"a:1","nodes":[0,0],"pdids":[1,65536]}`), "cannot unmarshal"},
		{host(strings.TrimSuffix(many, ",")), "at most 256"},
	} {
		m, err := Decode([]byte(c.packet))
		if !errors.Is(err, ErrMessage) || m != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.200s: %+v, %v, want %q", c.packet, m, err, c.want)
		}
	}
	for _, m := range []Message{{}, {Want: &Want{Host: "b"}, Socket: &Socket{}}, {Want: &Want{}}} {
		if b, err := m.Encode(); !errors.Is(err, ErrMessage) {
			t.Errorf("%+v: %s, %v", m, b, err)
		}
	}
}

// The largest cluster fits a message.
func TestLargestTable(t *testing.T) {
	m := Message{Table: &Table{Cluster: strings.Repeat("c", MaxName), Self: "host-0.long.example.com"}}
	for i := range MaxHosts {
		m.Table.Hosts = append(m.Table.Hosts, Host{
			Name: fmt.Sprintf("host-%d.long.example.com", i), Address: fmt.Sprintf("host-%d.long.example.com:9480", i),
			Nodes: [2]device.NodeID{LastNode - 63, LastNode}, PDIDs: [2]device.PDID{0xff00, 0xffff}, UDP: true,
		})
	}
	if b, err := m.Encode(); err != nil {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, g := range golden {
		f.Add([]byte(g.text))
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		m, err := Decode(packet)
		if err != nil {
			if !errors.Is(err, ErrMessage) || m != nil {
				t.Errorf("%v, %+v", err, m)
			}
			return
		}
		b, err := m.Encode()
		if errors.Is(err, ErrMessage) && strings.Contains(err.Error(), "at most 65536") {
			return // escapes made it longer
		}
		again, derr := Decode(b)
		if err != nil || derr != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%s: %+v encodes to %s (%v) and decodes to %+v (%v)", packet, m, b, err, again, derr)
		}
	})
}
