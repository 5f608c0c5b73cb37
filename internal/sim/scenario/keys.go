package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// form is the form of a key's value.
type form struct {
	text string // what the value is, for errors
	fits func(v any) bool
}

var (
	aTime     = form{`a text with a unit, as "2ms"`, isText}
	aSize     = form{`a text with a unit, as "64KiB"`, isText}
	aRate     = form{`a text with a unit, as "10Gb/s"`, isText}
	aWord     = form{"a text in quotes", isText}
	aNumber   = form{"a number without a point, 0 or more", func(v any) bool { n, ok := v.(int64); return ok && n >= 0 }}
	aFraction = form{"a number", func(v any) bool {
		switch v.(type) {
		case int64, float64:
			return true
		}
		return false
	}}
	aBool = form{"true or false", func(v any) bool { _, ok := v.(bool); return ok }}
	nodes = form{`a number, or a text as "0-3,8"`, func(v any) bool { return isText(v) || aNumber.fits(v) }}
	aList = form{"a list of numbers, as [4, 4, 4]", func(v any) bool { _, ok := v.([]any); return ok }}
)

func isText(v any) bool { _, ok := v.(string); return ok }

// keys are the keys of a file's tables; those of the file itself are below "".
var keys = map[string]map[string]form{
	"":         {"seed": aNumber, "limit": aTime, "cold": aBool},
	"topology": {"kind": aWord, "nodes": aNumber, "size": aList, "rate": aRate, "qfdb-rate": aRate, "hop": aTime, "routes": aNumber},
	"costs":    {"board": aWord, "firmware": aTime, "access": aTime, "interrupt": aTime, "call": aTime, "page": aTime, "request": aTime, "touch": aTime},
	"driver":   {"policy": aWord},
	"firmware": {
		"timeout": aTime, "guard": aTime, "outstanding": aNumber, "no-txfifo": aBool, "options": aWord,
		"ids": aNumber, "fifo": aNumber, "contexts": aNumber, "rate": aWord,
	},
	"workload": {
		"kind": aWord, "from": nodes, "to": nodes, "size": aSize, "most": aSize, "count": aNumber, "start": aTime, "absent": aFraction,
		"absent-source": aFraction, "touch": aBool, "read": aBool, "urgent": aBool, "pages": aNumber, "file": aWord,
	},
	"inject": {"what": aWord, "probability": aFraction, "from": aTime, "until": aTime, "nodes": nodes, "most": aTime, "link": aWord},
}

// names returns the keys of a table, and for the file its tables, too.
func names(table string) string {
	list := slices.Collect(maps.Keys(keys[table]))
	if table == "" {
		for t := range maps.Keys(keys) {
			if t != "" {
				list = append(list, t)
			}
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// checkKeys returns the first key that is unknown, or whose value has another form.
func checkKeys(file map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(file)) {
		v := file[key]
		switch {
		case key == "workload" || key == "inject":
			list, ok := v.([]any)
			if !ok {
				return &fault{table: key, err: fmt.Errorf("want a list of tables, as %s = [{ ... }, { ... }]", key)}
			}
			for i, one := range list {
				if err := checkTable(key, one); err != nil {
					return &fault{table: key, index: i, err: err}
				}
			}
		case keys[key] != nil && key != "":
			if err := checkTable(key, v); err != nil {
				return &fault{table: key, err: err}
			}
		default:
			if err := checkValue("", key, v); err != nil {
				return &fault{key: key, err: err}
			}
		}
	}
	return nil
}

func checkTable(table string, v any) error {
	t, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("want a table, as { ... }, with the keys %s", names(table))
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		if err := checkValue(table, key, t[key]); err != nil {
			return err
		}
	}
	return nil
}

func checkValue(table, key string, v any) error {
	f, ok := keys[table][key]
	switch {
	case !ok:
		return fmt.Errorf("unknown key %.40q: the keys are %s", key, names(table))
	case !f.fits(v):
		return fmt.Errorf("%s is %.40s: want %s", key, fmt.Sprint(v), f.text)
	}
	return nil
}
