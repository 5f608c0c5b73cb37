package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Explain says in words what is wrong with a flag of fs: what was meant by one that
// there is not, and what is wrong with a value, where the flag's own error would quote
// the parser of numbers. Other errors stay as they are.
func Explain(fs *pflag.FlagSet, err error) error {
	var v *pflag.InvalidValueError
	var n *strconv.NumError
	var none *pflag.NotExistError
	if errors.As(err, &none) {
		return suggest(fs, none)
	}
	if !errors.As(err, &v) {
		return err
	}
	if strings.HasPrefix(v.GetFlag().Value.Type(), "duration") {
		return fmt.Errorf("--%s %s: want a time with its unit, as 1s, 500ms or 2m", v.GetFlag().Name, v.GetValue())
	}
	if !errors.As(err, &n) {
		return err
	}
	want := "a whole number"
	switch kind := v.GetFlag().Value.Type(); {
	case errors.Is(n.Err, strconv.ErrRange):
		want = "a number that is not so large"
	case strings.HasPrefix(kind, "uint"):
		want = "a whole number, 0 or more"
	case kind == "bool":
		want = "true or false"
	case strings.HasPrefix(kind, "float"):
		want = "a number"
	}
	return fmt.Errorf("--%s %s: want %s", v.GetFlag().Name, v.GetValue(), want)
}

// suggest names the flags that are written much like one that there is not.
func suggest(fs *pflag.FlagSet, err *pflag.NotExistError) error {
	word := err.GetSpecifiedName()
	if short := err.GetSpecifiedShortnames(); short != "" {
		word, _, _ = strings.Cut(short, "=") // one dash for two: -method
	}
	if len(word) < 2 {
		return err // like any
	}
	// cobra compares a word with the names of commands, only.
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	fs.VisitAll(func(f *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: f.Name, Hidden: f.Hidden, Run: func(*cobra.Command, []string) {}})
	})
	meant := names.SuggestionsFor(word)
	if len(meant) == 0 {
		return err
	}
	return fmt.Errorf("%w: did you mean --%s?", err, strings.Join(meant, " or --"))
}
