package config

import (
	"errors"
	"testing"

	"github.com/spf13/pflag"
)

func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--int", "x"}, "--int x: want a whole number"},
		{[]string{"-i", "1.5"}, "--int 1.5: want a whole number"},
		{[]string{"--uint", "-1"}, "--uint -1: want a whole number, 0 or more"},
		{[]string{"--uint", "4294967296"}, "--uint 4294967296: want a smaller number"},
		{[]string{"--bool=perhaps"}, "--bool perhaps: want true or false"},
		{[]string{"--float", "x"}, "--float x: want a number"},
		{[]string{"--time", "3"}, "--time 3: want a time with its unit, as 1s, 500ms or 2m"},
		{[]string{"--none"}, "unknown flag: --none"},
		{[]string{"--tiem", "3s"}, "unknown flag: --tiem: did you mean --time?"},
		{[]string{"--fl=1"}, "unknown flag: --fl: did you mean --float?"},
		{[]string{"--nit"}, "unknown flag: --nit: did you mean --int or --uint?"},
		{[]string{"-time=3s"}, "unknown shorthand flag: 't' in -time=3s: did you mean --time?"},
		{[]string{"-x"}, "unknown shorthand flag: 'x' in -x"},
		{[]string{"--secre"}, "unknown flag: --secre"},
	} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.IntP("int", "i", 0, "")
		f.Uint32("uint", 0, "")
		f.Bool("bool", false, "")
		f.Float64("float", 0, "")
		f.Duration("time", 0, "")
		f.Bool("secret", false, "")
		if err := f.MarkHidden("secret"); err != nil {
			t.Fatal(err)
		}
		err := f.Parse(tc.args)
		if err == nil || Explain(f, err).Error() != tc.want {
			t.Errorf("%q: %v, want %s", tc.args, Explain(f, err), tc.want)
		}
	}
	other := errors.New("something else")
	if Explain(nil, other) != other || Explain(nil, nil) != nil {
		t.Error("an error that is not about a flag has changed")
	}
}
