package scenario

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

//go:embed ready/*.toml
var ready embed.FS

// Ready is a scenario that comes with the program.
type Ready struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

// ReadyOnes returns the scenarios that come with the program.
func ReadyOnes() (list []Ready) {
	entries, err := fs.ReadDir(ready, "ready")
	if err != nil {
		return nil // not reached: the directory is in the program
	}
	for _, e := range entries {
		text, _ := ReadyText(strings.TrimSuffix(e.Name(), ".toml"))
		var about []string
		for line := range strings.Lines(string(text)) {
			if line, ok := strings.CutPrefix(line, "# "); ok {
				about = append(about, strings.TrimSpace(line))
			}
		}
		list = append(list, Ready{strings.TrimSuffix(e.Name(), ".toml"), strings.Join(about, " ")})
	}
	return list
}

// ReadyText returns the text of a scenario that comes with the program.
func ReadyText(name string) ([]byte, error) {
	text, err := fs.ReadFile(ready, path.Join("ready", name+".toml"))
	if err != nil {
		var names []string
		for _, r := range ReadyOnes() {
			names = append(names, r.Name)
		}
		return nil, fmt.Errorf("%w %s: there is no such file, and the ones that come with the program are %s", ErrFile, name, strings.Join(names, ", "))
	}
	return text, nil
}
