package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/internal/plaintext"
	"github.com/exanet/pfd/link/handover"
)

// ErrFile reports a hosts.toml, or a file that it names, that cannot be used. The text names the
// file, the line if there is one, and the remedy.
var ErrFile = errors.New("hosts file")

// Limits of a file. Values below are defined by this project.
const (
	maxFile = 1 << 20 // bytes
)

// File is the contents of a hosts.toml.
type File struct {
	Cluster string   `toml:"cluster"`
	TLS     string   `toml:"tls,omitempty"`             // on or off; empty: on
	Trusted string   `toml:"trusted-network,omitempty"` // with tls = "off": the network that needs none, as 192.0.2.0/24
	CA      string   `toml:"ca,omitempty"`              // file of the cluster's certificate authority; empty: ca.pem
	Revoked []string `toml:"revoked,omitempty"`         // serial numbers of certificates, hexadecimal
	Hosts   []Host   `toml:"host"`

	path  string
	lines map[string]int
}

// Host is one host of a File.
type Host struct {
	Name        string `toml:"name"`
	Address     string `toml:"address"`               // HOST:PORT
	Nodes       string `toml:"nodes"`                 // A-B or A
	PDIDs       string `toml:"pdids"`                 // A-B
	Certificate string `toml:"certificate,omitempty"` // empty: NAME.pem
	Key         string `toml:"key,omitempty"`         // empty: NAME.key
	UDP         bool   `toml:"udp,omitempty"`

	nodes [2]device.NodeID
	pdids [2]device.PDID
}

// NodeRange returns the first and the last node of the host.
func (h *Host) NodeRange() [2]device.NodeID { return h.nodes }

// PDIDRange returns the first and the last PDID of the host's block.
func (h *Host) PDIDRange() [2]device.PDID { return h.pdids }

// Read reads a file. Errors match ErrFile.
func Read(path string) (*File, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: %s", ErrFile, err, readable(path, err))
	}
	return Parse(path, text)
}

// readable says how a file that cannot be read can be.
func readable(path string, err error) string {
	info, serr := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "let the user of this program read it, as chmod 644 " + path
	case serr == nil && info.IsDir():
		return "name the file in it, as " + filepath.Join(path, FileName)
	}
	return "copy it from where exanetctl host init was run; only a new cluster needs another exanetctl host init"
}

// readFile reads a regular file of a bounded size. Opening a pipe does not block.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile) {
		return nil, fmt.Errorf("%s: not a regular file of at most %d bytes", path, maxFile)
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// Parse reads the text of a file; path is its name. Errors match ErrFile.
func Parse(path string, text []byte) (*File, error) {
	text, err := plaintext.Text(text)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrFile, path, err)
	}
	f := &File{path: path}
	d := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields()
	if err := d.Decode(f); err != nil {
		return nil, atLine(path, err)
	}
	if f.lines, err = lines(text); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrFile, path, err)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f, nil
}

// atLine adds the file's name and the line to an error of the parser.
func atLine(path string, err error) error {
	var unknown *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &unknown) && len(unknown.Errors) > 0:
		e := unknown.Errors[0]
		line, _ := e.Position()
		keys := "cluster, tls, trusted-network, ca, revoked, and a [[host]] for each host"
		if k := e.Key(); len(k) > 1 && k[0] == "host" {
			keys = "name, address, nodes, pdids, certificate, key, udp"
		}
		return fmt.Errorf("%w %s:%d: unknown key %q: the keys are %s", ErrFile, path, line, strings.Join(e.Key(), "."), keys)
	case errors.As(err, &bad):
		line, _ := bad.Position()
		text := strings.TrimPrefix(bad.Error(), "toml: ")
		if _, field, ok := strings.Cut(text, "struct field hosts."); ok { // a value of another type
			text = wants(field)
		} else if strings.HasSuffix(text, "already exists") { // a second [host], or a key twice
			text += ": give a key once, and begin each host with [[host]]"
		}
		return fmt.Errorf("%w %s:%d: %s", ErrFile, path, line, text)
	}
	return fmt.Errorf("%w %s: %w", ErrFile, path, err)
}

// wants says what the value of a field of File or Host, as "Host.Nodes of type string", must be.
func wants(field string) string {
	_, field, _ = strings.Cut(field, ".")
	field, _, _ = strings.Cut(field, " ")
	switch key := strings.ToLower(field); key {
	case "hosts":
		return "host: want a [[host]] for each host"
	case "revoked":
		return `revoked: want a list of texts, as ["59ca"]`
	case "udp":
		return "udp: want true or false"
	case "tls":
		return `tls: want "on" or "off"`
	case "trusted":
		return "trusted-network: want a text in quotes"
	case "nodes":
		return `nodes: want a text, as "0-3"`
	case "pdids":
		return `pdids: want a text, as "0x100-0x1ff"`
	default:
		return key + ": want a text in quotes"
	}
}

// lines returns the line of each key: "cluster", "host 0", "host 0.name".
func lines(text []byte) (map[string]int, error) {
	all, hosts, prefix := map[string]int{}, 0, ""
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		e := p.Expression()
		k := e.Key()
		if e.Kind == unstable.Comment || !k.Next() {
			continue
		}
		line := p.Shape(k.Node().Raw).Start.Line
		switch e.Kind {
		case unstable.ArrayTable:
			prefix = fmt.Sprintf("host %d", hosts)
			hosts++
			all[prefix] = line
			prefix += "."
		case unstable.Table:
			prefix = string(k.Node().Data)
			all[prefix] = line
			prefix += "."
		case unstable.KeyValue:
			all[prefix+string(k.Node().Data)] = line
		}
	}
	return all, p.Error()
}

// fault returns an error about a key of the file, or about a key of a host (from 0 on).
func (f *File) fault(host int, key, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if host >= 0 {
		what := fmt.Sprintf("host %d", host+1)
		if n := f.Hosts[host].Name; handover.ValidName(n) {
			what = "host " + n
		}
		err = fmt.Errorf("%s: %w", what, err)
	}
	at := f.path
	if line := f.line(host, key); line > 0 {
		at = fmt.Sprintf("%s:%d", f.path, line)
	}
	return fmt.Errorf("%w %s: %w", ErrFile, at, err)
}

// line returns the line of a key, or of its table if the file has not got the key, or 0.
func (f *File) line(host int, key string) int {
	if host < 0 {
		return f.lines[key]
	}
	table := fmt.Sprintf("host %d", host)
	for _, k := range []string{table + "." + key, table, "host"} {
		if n := f.lines[k]; n > 0 {
			return n
		}
	}
	return 0
}

// check checks and completes all values.
func (f *File) check() error {
	if !handover.ValidName(f.Cluster) {
		return f.fault(-1, "cluster", "cluster %q: want a name of 1 to %d letters, digits, dots, hyphens or underscores, as cluster = \"lab\"", f.Cluster, handover.MaxName)
	}
	var trusted netip.Prefix
	switch f.TLS {
	case "", "on":
		if f.Trusted != "" {
			return f.fault(-1, "trusted-network", "trusted-network %q: it has no effect with tls = \"on\": remove it, or set tls = \"off\"", f.Trusted)
		}
	case "off":
		var err error
		if trusted, err = netip.ParsePrefix(f.Trusted); err != nil {
			key := "tls"
			if f.Trusted != "" {
				key = "trusted-network"
			}
			return f.fault(-1, key, "trusted-network %q: tls = \"off\" needs the network that it trusts, as trusted-network = \"192.0.2.0/24\"", f.Trusted)
		}
	default:
		return f.fault(-1, "tls", "tls %q: want \"on\" or \"off\"", f.TLS)
	}
	for i, r := range f.Revoked {
		serial, ok := parseSerial(r)
		if !ok {
			return f.fault(-1, "revoked", "revoked %q: want the serial number of a certificate in hexadecimal, as openssl x509 -noout -serial prints it", r)
		}
		f.Revoked[i] = serial
	}
	if len(f.Hosts) == 0 || len(f.Hosts) > handover.MaxHosts {
		return f.fault(-1, "", "%d hosts: want 1 to %d, each with a [[host]] of its own", len(f.Hosts), handover.MaxHosts)
	}
	for i := range f.Hosts {
		if err := f.checkHost(i, trusted); err != nil {
			return err
		}
		for k := range i {
			if err := f.checkPair(i, k); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *File) checkHost(i int, trusted netip.Prefix) error {
	h := &f.Hosts[i]
	if !handover.ValidName(h.Name) {
		return f.fault(i, "name", "name %q: want 1 to %d letters, digits, dots, hyphens or underscores", h.Name, handover.MaxName)
	}
	if err := handover.CheckAddress(h.Address); err != nil {
		return f.fault(i, "address", "%w, as address = \"192.0.2.1:%d\"", err, DefaultPort)
	}
	if trusted.IsValid() {
		host, _, _ := net.SplitHostPort(h.Address) // CheckAddress has accepted it
		a, err := netip.ParseAddr(host)
		if err != nil || !trusted.Contains(a.Unmap()) {
			return f.fault(i, "address", "address %q is not in trusted-network %q: with tls = \"off\" every address must be a number in it: use tls = \"on\"", h.Address, f.Trusted)
		}
	}
	first, last, ok := parseRange(h.Nodes, handover.LastNode)
	if !ok {
		return f.fault(i, "nodes", "nodes %q: want A-B, 0 to %d, as nodes = \"0-3\"", h.Nodes, handover.LastNode)
	}
	if last-first >= handover.MaxNodes {
		return f.fault(i, "nodes", "nodes %q are %d: a pfd has at most %d", h.Nodes, last-first+1, handover.MaxNodes)
	}
	h.nodes = [2]device.NodeID{device.NodeID(first), device.NodeID(last)}
	if first, last, ok = parseRange(h.PDIDs, uint64(device.MaxPDID)); !ok || first == 0 {
		return f.fault(i, "pdids", "pdids %q: want A-B, 1 to %#x, as pdids = \"0x100-0x1ff\"", h.PDIDs, uint16(device.MaxPDID))
	}
	h.pdids = [2]device.PDID{device.PDID(first), device.PDID(last)}
	return nil
}

// checkPair checks that nothing of host i is also of host k, which is above it in the file.
func (f *File) checkPair(i, k int) error {
	h, o := &f.Hosts[i], &f.Hosts[k]
	other := func(key string) string { return fmt.Sprintf("host %s (line %d)", o.Name, f.line(k, key)) }
	switch {
	case h.Name == o.Name:
		return f.fault(i, "name", "the name is also that of the host at %s (line %d): give each host a name of its own", o.Address, f.line(k, "name"))
	case h.Address == o.Address:
		return f.fault(i, "address", "address %q is also that of %s: give each host an address of its own", h.Address, other("address"))
	case h.nodes[0] <= o.nodes[1] && o.nodes[0] <= h.nodes[1]:
		return f.fault(i, "nodes", "nodes %q overlap nodes %q of %s: give each host nodes of its own", h.Nodes, o.Nodes, other("nodes"))
	case h.pdids[0] <= o.pdids[1] && o.pdids[0] <= h.pdids[1]:
		return f.fault(i, "pdids", "pdids %q overlap pdids %q of %s: give each host a block of its own", h.PDIDs, o.PDIDs, other("pdids"))
	}
	return nil
}

// parseRange reads A-B, or A for A-A, each up to most.
func parseRange(s string, most uint64) (first, last uint64, ok bool) {
	a, b, two := strings.Cut(s, "-")
	if !two {
		b = a
	}
	first, errA := strconv.ParseUint(a, 0, 64)
	last, errB := strconv.ParseUint(b, 0, 64)
	return first, last, errA == nil && errB == nil && first <= last && last <= most
}

// parseSerial returns a serial number as a Table has it. openssl x509 -noout -serial prints serial=59CA.
func parseSerial(s string) (string, bool) {
	n, ok := new(big.Int).SetString(strings.ReplaceAll(strings.TrimPrefix(s, "serial="), ":", ""), 16)
	if !ok || n.Sign() <= 0 || n.BitLen() > 160 { // RFC 5280 4.1.2.2: 20 octets
		return "", false
	}
	return n.Text(16), true
}

// TrustedNetwork returns the only network from which a cluster without TLS accepts connections. It
// is not valid with TLS.
func (f *File) TrustedNetwork() netip.Prefix {
	p, err := netip.ParsePrefix(f.Trusted)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// Secure reports whether links use TLS.
func (f *File) Secure() bool { return f.TLS != "off" }

// Find returns the host of a name. Errors match ErrFile.
func (f *File) Find(name string) (*Host, error) {
	i := slices.IndexFunc(f.Hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		var names []string
		for _, h := range f.Hosts {
			names = append(names, h.Name)
		}
		return nil, fmt.Errorf("%w %s: it has no host %q: its hosts are %s: name this one with --name", ErrFile, f.path, name, strings.Join(names, ", "))
	}
	return &f.Hosts[i], nil
}

// Table returns the table of hosts for the pfd of host self. Errors match ErrFile.
func (f *File) Table(self string) (*handover.Table, error) {
	if _, err := f.Find(self); err != nil {
		return nil, err
	}
	t := &handover.Table{Cluster: f.Cluster, Self: self, Revoked: f.Revoked, TLS: f.Secure()}
	for _, h := range f.Hosts {
		t.Hosts = append(t.Hosts, handover.Host{Name: h.Name, Address: h.Address, Nodes: h.nodes, PDIDs: h.pdids, UDP: h.UDP})
	}
	return t, nil
}

// beside returns the path of a file that the hosts file names, or its default.
func (f *File) beside(name, standard string) string {
	if name == "" {
		name = standard
	}
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(f.path), name)
}

// DefaultPort is the TCP port of exanet-hostd. Defined by this project.
const DefaultPort = 9480
