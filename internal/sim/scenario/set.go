package scenario

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Set returns a file's text with one value changed or added. The key is a path, as "driver.policy" or
// "workload.0.absent"; the value is TOML, or a text without its quotes.
func Set(text []byte, key, value string) ([]byte, error) {
	var file map[string]any
	if err := toml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	var parsed struct{ V any }
	if err := toml.Unmarshal([]byte("V = "+value), &parsed); err != nil || parsed.V == nil {
		parsed.V = value
	}
	path := strings.Split(key, ".")
	if err := put(file, path, parsed.V); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, key, err)
	}
	var b bytes.Buffer
	err := toml.NewEncoder(&b).Encode(file)
	return b.Bytes(), err
}

// put sets a value in nested tables and lists.
func put(at any, path []string, v any) error {
	switch at := at.(type) {
	case map[string]any:
		if len(path) == 1 {
			at[path[0]] = v
			return nil
		}
		if at[path[0]] == nil {
			if _, err := strconv.Atoi(path[1]); err == nil {
				return fmt.Errorf("the file has no %s", path[0])
			}
			at[path[0]] = map[string]any{}
		}
		return put(at[path[0]], path[1:], v)
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i < 0 || i >= len(at) {
			return fmt.Errorf("%q is no place in a list of %d, counted from 0", path[0], len(at))
		}
		if len(path) == 1 {
			at[i] = v
			return nil
		}
		return put(at[i], path[1:], v)
	}
	return fmt.Errorf("%q is within a value that has no keys", path[0])
}
