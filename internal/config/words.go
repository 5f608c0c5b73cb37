package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Explain explains an error of parsing the flags fs. For an unknown flag it suggests similar
// ones; for a bad value it says what is accepted, without the number parser's text. It returns
// other errors unchanged.
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
		want = "a smaller number"
	case strings.HasPrefix(kind, "uint"):
		want = "a whole number, 0 or more"
	case kind == "bool":
		want = "true or false"
	case strings.HasPrefix(kind, "float"):
		want = "a number"
	}
	return fmt.Errorf("--%s %s: want %s", v.GetFlag().Name, v.GetValue(), want)
}

// suggest adds the flags whose names are similar to the unknown one.
func suggest(fs *pflag.FlagSet, err *pflag.NotExistError) error {
	word := err.GetSpecifiedName()
	if short := err.GetSpecifiedShortnames(); short != "" {
		word, _, _ = strings.Cut(short, "=") // a single dash, as in -method
	}
	if len(word) < 2 {
		return err // too short to compare
	}
	// cobra compares a word only with the names of commands.
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
