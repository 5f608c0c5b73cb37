// Package pagein names the ways to page in absent memory: the method (what pages in) and the
// policy (how many pages per fault), with their numbers in the attachment protocol and their
// words in flags and tables. Package fault implements them.
package pagein

import (
	"errors"
	"fmt"
	"strings"
)

// Method says which component pages in, and how (spec/faultpath.md "Page-in methods"). The
// numbers are those of HELLO and WELCOME in docs/attach.md (defined by this project).
type Method uint8

// The methods.
const (
	MethodDefault Method = 0 // pfd chooses: gup
	GUP           Method = 1 // pfd, from outside the process
	Touch         Method = 2 // the process's own library thread, which also sends the RAPF
	UFFD          Method = 3 // pfd, through userfaultfds that the process passes to it
	Populate      Method = 4 // the process's own library thread on request; pfd sends the RAPF
)

// Policy says how many pages a fault pages in (spec/faultpath.md "Policies"; PART's names). The
// numbers are those of HELLO and WELCOME in docs/attach.md (defined by this project).
type Policy uint8

// The policies.
const (
	PolicyDefault Policy = 0 // pfd chooses: PIO
	PIO           Policy = 1 // the faulting page
	PI4           Policy = 2 // to the end of its aligned 16 KiB; at a source, four pages
	PIA           Policy = 3 // all remaining pages of the transfer
	Adaptive      Policy = 4 // as PIA, plus the pages that the domain's faults predict
)

// Errors of the two parsers.
var (
	ErrMethod = errors.New("unknown page-in method")
	ErrPolicy = errors.New("unknown page-in policy")
)

// The words, indexed by number.
func methods() []string  { return []string{"default", "gup", "touch", "uffd", "populate"} }
func policies() []string { return []string{"default", "p1", "p4", "pa", "adaptive"} }

// String returns the word used in flags and tables.
func (m Method) String() string { return name(methods(), int(m)) }

// Known reports whether the number is a method's, including MethodDefault.
func (m Method) Known() bool { return int(m) < len(methods()) }

// Chosen returns the method, with MethodDefault replaced by the default.
func (m Method) Chosen() Method {
	if m == MethodDefault {
		return GUP
	}
	return m
}

// ParseMethod parses a word, ignoring case; "" and "default" are MethodDefault. Errors match
// ErrMethod.
func ParseMethod(s string) (Method, error) {
	i, err := parse(methods(), s, ErrMethod)
	return Method(i), err
}

// String returns the word used in flags and tables.
func (p Policy) String() string { return name(policies(), int(p)) }

// Known reports whether the number is a policy's, including PolicyDefault.
func (p Policy) Known() bool { return int(p) < len(policies()) }

// Chosen returns the policy, with PolicyDefault replaced by the default.
func (p Policy) Chosen() Policy {
	if p == PolicyDefault {
		return PIO
	}
	return p
}

// ParsePolicy parses a word of this project or of PART (PIO, PI4, PIA), ignoring case; "" and
// "default" are PolicyDefault. Errors match ErrPolicy.
func ParsePolicy(s string) (Policy, error) {
	for i, w := range []string{PIO: "PIO", PI4: "PI4", PIA: "PIA"} {
		if w != "" && strings.EqualFold(w, s) {
			return Policy(i), nil
		}
	}
	i, err := parse(policies(), s, ErrPolicy)
	return Policy(i), err
}

func name(words []string, i int) string {
	if i >= len(words) {
		return fmt.Sprintf("unknown(%d)", i)
	}
	return words[i]
}

func parse(words []string, s string, unknown error) (int, error) {
	if s == "" {
		return 0, nil
	}
	for i, w := range words {
		if strings.EqualFold(w, s) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%w %q: use one of %s", unknown, s, strings.Join(words[1:], ", "))
}
