package config

import "io"

// Output passes writes to W and keeps the first error, which cobra's help functions drop.
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
