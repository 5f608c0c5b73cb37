package plaintext

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for _, c := range []struct{ name, in, want, err string }{
		{"nothing", "", "", ""},
		{"as it should be", "a = 1\nb = \"ü\"\n", "a = 1\nb = \"ü\"\n", ""},
		{"no last line feed", "a", "a", ""},
		{"a byte order mark", "\xef\xbb\xbfa\n", "a\n", ""},
		{"a byte order mark alone", "\xef\xbb\xbf", "", ""},
		{"DOS", "\xef\xbb\xbfa\r\nb\r\n", "a\nb\n", ""},
		{"an old Macintosh", "a\rb\r", "a\nb\n", ""},
		{"UTF-16, little end", "\xff\xfea\x00\n\x00", "", "it is UTF-16"},
		{"UTF-16, big end", "\xfe\xff\x00a", "", "it is UTF-16"},
		{"UTF-32", "\xff\xfe\x00\x00a\x00\x00\x00", "", "it is UTF-32"},
		{"UTF-16 without a mark", "a\x00\n\x00", "", "line 1"},
		{"zeros at the end", "a\nb\n\x00\x00", "", "line 3"},
		{"Latin-1", "a\n# f\xfcr\n", "", "line 2"},
	} {
		got, err := Text([]byte(c.in))
		if c.err == "" && (err != nil || string(got) != c.want) || c.err != "" && (!errors.Is(err, ErrEncoding) || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, %v, want %q, %q", c.name, got, err, c.want, c.err)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("\xef\xbb\xbfa\r\nb\r"))
	f.Add([]byte("\xff\xfea\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		text, err := Text(b)
		switch {
		case err != nil && !errors.Is(err, ErrEncoding):
			t.Errorf("%q: %v", b, err)
		case err == nil && (!utf8.Valid(text) || bytes.ContainsRune(text, 0)):
			t.Errorf("%q becomes %q", b, text)
		}
	})
}
