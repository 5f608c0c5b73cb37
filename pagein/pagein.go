// Package pagein names the ways in which absent pages are brought in: the method
// (who does it) and the policy (how many pages a fault brings in), with the
// numbers that the attachment protocol gives them and the words that flags and
// tables have. What they mean in action is package fault's.
package pagein

import (
	"errors"
	"fmt"
	"strings"
)

// Method says who pages in, and how (spec/faultpath.md "Page-in methods"). The
// numbers are those of docs/attach.md, HELLO and WELCOME (ours).
type Method uint8

// The methods.
const (
	MethodDefault Method = 0 // pfd chooses: gup
	GUP           Method = 1 // pfd does it, from outside the process
	Touch         Method = 2 // the process's own library thread, which also sends the RAPF
	UFFD          Method = 3 // pfd does it through userfaultfds that the process hands over
	Populate      Method = 4 // the process's own library thread on request; pfd sends the RAPF
)

// Policy says how many pages a fault brings in (spec/faultpath.md "Policies";
// PART's names). The numbers are those of docs/attach.md, HELLO and WELCOME
// (ours).
type Policy uint8

// The policies.
const (
	PolicyDefault Policy = 0 // pfd chooses: PIO
	PIO           Policy = 1 // the page
	PI4           Policy = 2 // to the end of its aligned 16 KiB; at a source four pages
	PIA           Policy = 3 // all remaining pages of the transfer
	Adaptive      Policy = 4 // as PIA, and what the domain's faults show to come next (ours)
)

// Errors of the two parsers.
var (
	ErrMethod = errors.New("unknown page-in method")
	ErrPolicy = errors.New("unknown page-in policy")
)

// The words, by number.
func methods() []string  { return []string{"default", "gup", "touch", "uffd", "populate"} }
func policies() []string { return []string{"default", "p1", "p4", "pa", "adaptive"} }

// String gives the word that flags and tables have.
func (m Method) String() string { return name(methods(), int(m)) }

// Known tells whether the number is a method's, MethodDefault among them.
func (m Method) Known() bool { return int(m) < len(methods()) }

// Chosen gives the method, or what MethodDefault stands for.
func (m Method) Chosen() Method {
	if m == MethodDefault {
		return GUP
	}
	return m
}

// ParseMethod gives the method of a word, whose case does not matter; "" and "default" are MethodDefault. An
// error matches ErrMethod.
func ParseMethod(s string) (Method, error) {
	i, err := parse(methods(), s, ErrMethod)
	return Method(i), err
}

// String gives the word that flags and tables have.
func (p Policy) String() string { return name(policies(), int(p)) }

// Known tells whether the number is a policy's, PolicyDefault among them.
func (p Policy) Known() bool { return int(p) < len(policies()) }

// Chosen gives the policy, or what PolicyDefault stands for.
func (p Policy) Chosen() Policy {
	if p == PolicyDefault {
		return PIO
	}
	return p
}

// ParsePolicy gives the policy of a word, ours or PART's (PIO, PI4, PIA); "" and
// "default" are PolicyDefault. An error matches ErrPolicy.
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
	return 0, fmt.Errorf("%w %q: want %s", unknown, s, strings.Join(words[1:], ", "))
}
