package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Explain says in words what is wrong with a flag's value, where the flag's own
// error would quote the parser of numbers. Other errors stay as they are.
func Explain(err error) error {
	var v *pflag.InvalidValueError
	var n *strconv.NumError
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
