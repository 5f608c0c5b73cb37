package hosts

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/link/handover"
)

// blockSize is how many PDIDs a host has. Defined by this project.
const blockSize = 256

// The files of a cluster, beside those of each host.
const (
	FileName = "hosts.toml"
	caCert   = "ca.pem"
	caKey    = "ca.key"
	groups   = "groups"
)

// etcGroups is where the hosts have the file of groups.
const etcGroups = "/etc/exanet/" + groups

// groupPDID is the first PDID of the first group: groups of several hosts have PDIDs below all
// blocks. Defined by this project.
const groupPDID = 0x10

// ErrExists reports a file that exists already: nothing is overwritten.
var ErrExists = errors.New("nothing is overwritten")

// New is a host to add.
type New struct {
	Name    string
	Address string // HOST or HOST:PORT
	Nodes   int    // 0: one, or as many as it has
}

// Ready is a host whose files were made.
type Ready struct {
	Host
	Files   []string // to be copied to it
	Renewed bool     // it has a new certificate and is the same otherwise
}

// Init makes the files of a cluster in dir: hosts.toml, the certificate authority, the groups that
// have processes on several hosts, and for each host a certificate, a key, and a part of pfd.toml.
// The calling user's default group is the first of these groups. Errors match ErrFile or ErrExists.
func Init(dir, cluster string, list []New, now time.Time) ([]Ready, error) {
	path := filepath.Join(dir, FileName)
	text := []byte(fmt.Sprintf(`# The hosts of the cluster: the same file on each of them. After a change copy it to all
# hosts, and run systemctl reload exanet-hostd there (docs/hosts.md).
cluster = %q
`, cluster))
	text, err := addHosts(path, text, nil, list)
	if err != nil {
		return nil, err
	}
	f, err := Parse(path, text)
	if err != nil {
		return nil, err
	}
	ca, err := NewCA(cluster, now)
	if err != nil {
		return nil, err
	}
	w := &writer{}
	cert, key, err := ca.PEM()
	if err != nil {
		return nil, err
	}
	w.add(filepath.Join(dir, caCert), cert, 0o644)
	w.add(filepath.Join(dir, caKey), key, 0o600)
	w.add(path, text, 0o644)
	w.add(filepath.Join(dir, groups), fmt.Appendf(nil, `# Groups whose processes are on several hosts: UID GROUP FIRST-PDID. The same file on each host,
# where the users must have the same numbers: a line for each user who uses several hosts. A group
# has 16 PDIDs, below those of the hosts (%#x) or above them. After a change restart all pfds.
%d default %#x
`, blockSize, os.Getuid(), groupPDID), 0o644)
	ready, err := f.issue(w, ca, f.Hosts, now)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return ready, w.write()
}

// Add adds a host to the files in dir. The other hosts keep their numbers. A host that is there
// already, with the same address, gets a new certificate if its files are gone. Errors match
// ErrFile or ErrExists.
func Add(dir string, n New, now time.Time) (*Ready, error) {
	path := filepath.Join(dir, FileName)
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: name the directory where exanetctl host init was run", ErrFile, err)
	}
	f, err := Parse(path, text)
	if err != nil {
		return nil, err
	}
	cert, err := readFile(f.beside(f.CA, caCert))
	if err != nil {
		return nil, fmt.Errorf("%w: the certificate authority: %w: add hosts where exanetctl host init was run", ErrFile, err)
	}
	key, err := readFile(filepath.Join(dir, caKey))
	if err != nil {
		return nil, fmt.Errorf("%w: the key of the certificate authority: %w: add hosts where exanetctl host init was run", ErrFile, err)
	}
	ca, err := LoadCA(f.Cluster, cert, key)
	if err != nil {
		return nil, fmt.Errorf("%w: %s and %s: %w: restore both from one place", ErrFile, f.beside(f.CA, caCert), filepath.Join(dir, caKey), err)
	}
	w, old := &writer{}, f
	i := slices.IndexFunc(f.Hosts, func(h Host) bool { return h.Name == n.Name })
	if i >= 0 {
		h := &f.Hosts[i]
		if h.Address != withPort(n.Address) {
			return nil, f.fault(i, "address", "its address is %q, not %q: for another host give another name; to change the address edit hosts.toml on all hosts", h.Address, withPort(n.Address))
		}
		if has := int(h.nodes[1]-h.nodes[0]) + 1; n.Nodes != 0 && n.Nodes != has {
			return nil, f.fault(i, "nodes", "it has %d nodes, not %d: a certificate is renewed without nodes=; to change the nodes edit hosts.toml on all hosts", has, n.Nodes)
		}
	} else {
		if text, err = addHosts(path, text, f, []New{n}); err != nil {
			return nil, err
		}
		if f, err = Parse(path, text); err != nil {
			return nil, err
		}
		i = len(f.Hosts) - 1
	}
	ready, err := f.issue(w, ca, f.Hosts[i:i+1], now)
	if err != nil {
		return nil, err
	}
	if err := w.write(); err != nil {
		return nil, err
	}
	if f == old {
		ready[0].Renewed, ready[0].Files = true, []string{path, ready[0].Files[2], ready[0].Files[3]}
	} else {
		if err := replace(path, text); err != nil {
			return nil, errors.Join(err, w.undo())
		}
	}
	return &ready[0], nil
}

// addHosts appends hosts to the text of a file, with the numbers after those of f, if any.
func addHosts(path string, text []byte, f *File, list []New) ([]byte, error) {
	node, pdid := uint64(0), uint64(blockSize)
	if f != nil {
		for _, h := range f.Hosts {
			node = max(node, uint64(h.nodes[1])+1)
			pdid = max(pdid, (uint64(h.pdids[1])/blockSize+1)*blockSize)
		}
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	for _, n := range list {
		if n.Nodes == 0 {
			n.Nodes = 1
		}
		if n.Nodes < 1 || n.Nodes > handover.MaxNodes {
			return nil, fmt.Errorf("%w %s: host %s: %d nodes: want 1 to %d", ErrFile, path, n.Name, n.Nodes, handover.MaxNodes)
		}
		last := pdid + blockSize - 1
		if last == uint64(device.MaxPDID)+1 {
			last--
		}
		if last > uint64(device.MaxPDID) || node+uint64(n.Nodes)-1 > handover.LastNode {
			return nil, fmt.Errorf("%w %s: host %s: no block of %d PDIDs or no nodes are left: give the hosts smaller ones by hand", ErrFile, path, n.Name, blockSize)
		}
		text = fmt.Appendf(text, "\n[[host]]\nname = %q\naddress = %q\nnodes = \"%d-%d\"\npdids = \"%#x-%#x\"\n",
			n.Name, withPort(n.Address), node, node+uint64(n.Nodes)-1, pdid, last)
		node, pdid = node+uint64(n.Nodes), pdid+blockSize
	}
	return text, nil
}

// withPort adds the default port to an address without one.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil || address == "" {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(DefaultPort))
}

// issue makes the files of hosts.
func (f *File) issue(w *writer, ca *CA, list []Host, now time.Time) (ready []Ready, err error) {
	for _, h := range list {
		cert, key, err := ca.Issue(h.Name, h.nodes, now)
		if err != nil {
			return nil, err
		}
		part := filepath.Join(filepath.Dir(f.path), h.Name+".pfd.toml")
		r := Ready{Host: h, Files: []string{f.path, f.beside(f.CA, caCert), f.beside(h.Certificate, h.Name+".pem"), f.beside(h.Key, h.Name+".key"), part, filepath.Join(filepath.Dir(f.path), groups)}}
		w.add(r.Files[2], cert, 0o644)
		w.add(r.Files[3], key, 0o600)
		w.addSame(part, fmt.Appendf(nil, "# For /etc/exanet/pfd.toml of host %s: its numbers in %s.\nnodes = %d\nnode-base = %d\npdid-range = \"%#x-%#x\"\ngroups = %q\n",
			h.Name, FileName, h.nodes[1]-h.nodes[0]+1, h.nodes[0], uint16(h.pdids[0]), uint16(h.pdids[1]), etcGroups))
		ready = append(ready, r)
	}
	return ready, nil
}

// writer writes several new files, or none.
type writer struct {
	files []newFile
	made  []string
}

type newFile struct {
	path string
	text []byte
	mode fs.FileMode
	same bool // an existing file with the same text is no error
}

func (w *writer) add(path string, text []byte, mode fs.FileMode) {
	w.files = append(w.files, newFile{path, text, mode, false})
}

func (w *writer) addSame(path string, text []byte) {
	w.files = append(w.files, newFile{path, text, 0o644, true})
}

func (w *writer) write() error {
	for _, f := range w.files {
		if old, err := readFile(f.path); f.same && err == nil && string(old) == string(f.text) {
			continue
		}
		if err := create(f.path, f.text, f.mode); err != nil {
			return errors.Join(err, w.undo())
		}
		w.made = append(w.made, f.path)
	}
	return nil
}

// undo removes the files that write has made.
func (w *writer) undo() (err error) {
	for _, path := range w.made {
		err = errors.Join(err, os.Remove(path))
	}
	w.made = nil
	return err
}

// create writes a new file, with exactly this mode.
func create(path string, text []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %s exists: name another directory, or remove the file if it is not needed", ErrExists, path)
	}
	if err != nil {
		return err
	}
	err = f.Chmod(mode) // whatever the umask
	if err == nil {
		_, err = f.Write(text)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// replace puts a new text in the place of an old file, as a whole.
func replace(path string, text []byte) error {
	part := path + ".new"
	if err := create(part, text, 0o644); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}
