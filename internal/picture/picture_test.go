package picture

import (
	"math"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

// An axis goes from one round value to another, and no value lies outside.
func TestAxis(t *testing.T) {
	for _, c := range []struct {
		values []float64
		ticks  []float64
	}{
		{[]float64{590, 230, 190}, []float64{0, 100, 200, 300, 400, 500, 600}},
		{[]float64{7}, []float64{0, 2, 4, 6, 8}},
		{[]float64{0, 0}, []float64{0, 2e-10, 4e-10, 6e-10, 8e-10, 1e-9}},
		{[]float64{-3, 9.7}, []float64{-5, 0, 5, 10}},
		{[]float64{2.5, 620}, []float64{1, 3, 10, 30, 100, 300, 1000}},
		{[]float64{3, 300}, []float64{3, 10, 30, 100, 300}},
		{[]float64{0.02, 0.9}, []float64{0.01, 0.03, 0.1, 0.3, 1}},
	} {
		a := New("", "", "").X
		at, logarithmic := Axis(&a, slices.Min(c.values), slices.Max(c.values))
		var ticks []float64
		for _, tick := range a.Tick.Marker.Ticks(a.Min, a.Max) {
			if logarithmic {
				tick.Value = math.Pow(10, tick.Value)
			}
			ticks = append(ticks, tick.Value)
		}
		if !slices.EqualFunc(ticks, c.ticks, func(x, y float64) bool { return math.Abs(x-y) <= math.Abs(y)*1e-9 }) {
			t.Errorf("%v: ticks %v, want %v", c.values, ticks, c.ticks)
		}
		for _, v := range append(c.values, 0) {
			if at := a.Norm(at(v)); !(at >= 0 && at <= 1) {
				t.Errorf("%v: %v is at %v of the axis", c.values, v, at)
			}
		}
	}
}

// However far the values are apart, labels have room: no more than mostTicks.
func TestLabels(t *testing.T) {
	for _, low := range []float64{1e-17, 1e-9, 0.7, 1, 20} {
		for high := low; high <= limit; high *= 7 {
			a := New("", "", "").X
			Axis(&a, low, high)
			ticks := a.Tick.Marker.Ticks(a.Min, a.Max)
			if n := len(slices.DeleteFunc(slices.Clone(ticks), plot.Tick.IsMinor)); n < 2 || n > mostTicks {
				t.Errorf("%v to %v: %d labels: %v", low, high, n, ticks)
			}
		}
	}
}

// A picture is one element that asks for nothing, as high as its legends and as wide as its title.
func TestSVG(t *testing.T) {
	size := func(title string, names int) (width, height string) {
		p, q := New(title, "x <s>", "y & more, us"), New("", "x", "y")
		for range names {
			p.Legend.Add("name", &plotter.Polygon{})
		}
		svg := SVG(100, 50, p, q)
		if !strings.HasPrefix(svg, "<svg ") || strings.Count(svg, "http") != 1 || !strings.Contains(svg, ">x &lt;s&gt;<") || !strings.Contains(svg, ">y &amp; more, us<") {
			t.Errorf("%s", svg)
		}
		fields := strings.Split(svg, `"`)
		return fields[1], fields[3]
	}
	w, h := size("T", 1)
	if wide, same := size("A title that is longer than the axes are wide", 1); wide == w || same != h {
		t.Errorf("a long title: %s by %s points, %s by %s without it", wide, same, w, h)
	}
	if same, high := size("T", 20); same != w || high == h {
		t.Errorf("a long legend: %s by %s points, %s by %s without it", same, high, w, h)
	}
}
