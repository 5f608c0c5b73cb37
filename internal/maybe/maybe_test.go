package maybe

import (
	"encoding/json"
	"testing"
)

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		n    Number
		text string
		json string
	}{
		{0, "0", "0"},
		{1 << 53, "9007199254740992", "9007199254740992"},
		{2.5, "2.5", "2.5"},
		{Unknown(), "-", "null"},
		{Unknown() - 1, "-", "null"},
		{Number(3).Since(Unknown()), "-", "null"},
		{Number(3).Since(4), "-", "null"},
		{Number(3).Since(1), "2", "2"},
	} {
		text, err := json.Marshal(c.n)
		if c.n.String() != c.text || string(text) != c.json || err != nil {
			t.Errorf("got %s and %s, %v, want %s and %s", c.n, text, err, c.text, c.json)
		}
		var back Number
		if err := json.Unmarshal(text, &back); err != nil || back.String() != c.text {
			t.Errorf("%s comes back as %s, %v", text, back, err)
		}
	}
	if got := Number(2.55).Text(1); got != "2.5" && got != "2.6" {
		t.Error(got)
	}
	var n Number
	if err := json.Unmarshal([]byte(`"x"`), &n); err == nil {
		t.Error("text is accepted as a number")
	}
}

func FuzzNumber(f *testing.F) {
	for _, text := range []string{"null", "0", "-1.5e9", "1e999", `"x"`, "NaN", ""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var n Number
		if n.UnmarshalJSON(text) != nil {
			return
		}
		again, err := json.Marshal(n)
		var back Number
		if err == nil {
			err = json.Unmarshal(again, &back)
		}
		if err != nil || back != n && (back.Known() || n.Known()) {
			t.Errorf("%q is %v, written %q, which is %v: %v", text, n, again, back, err)
		}
	})
}
