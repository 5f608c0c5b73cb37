package config

import "io"

// Output keeps the first error of writing to W: the help of a command line drops it.
type Output struct {
	W   io.Writer
	Err error
}

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	n, err := o.W.Write(b)
	if o.Err == nil {
		o.Err = err
	}
	return n, err
}
