package rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/exanet/pfd/attach"
	"github.com/exanet/pfd/device"
	"github.com/exanet/pfd/device/pagein"
	"github.com/exanet/pfd/internal/folios/foliotest"
)

// present returns which pages of b are in memory.
func present(t *testing.T, b []byte) (pages []int) {
	t.Helper()
	vec := make([]byte, (len(b)+device.PageSize-1)/device.PageSize)
	if err := mincore(b, vec); err != nil {
		t.Fatal(err)
	}
	for i, v := range vec {
		if v&1 != 0 {
			pages = append(pages, i)
		}
	}
	return pages
}

// A buffer of folios is absent, aligned for the largest folio that it has room for, and comes in
// by whole folios. Its end, less than a folio, comes in by single pages.
func TestFolios(t *testing.T) {
	for _, kib := range []int{16, 64, 256, 2048} {
		t.Run(fmt.Sprint(kib), func(t *testing.T) {
			foliotest.Set(t, kib)
			f, err := newFake()
			if err != nil {
				t.Fatal(err)
			}
			f.caps = device.CapsSVA
			e := attachTo(t, startFake(t, f))
			folio := kib << 10 / device.PageSize
			size := (2*folio+3)*device.PageSize - 1
			b, err := e.AllocWith(size, AllocOptions{Folios: true})
			if err != nil {
				t.Fatal(err)
			}
			if n, err := b.Folio(); n != folio || err != nil {
				t.Errorf("%d pages come in together, %v, want %d", n, err, folio)
			}
			p := b.Bytes()
			if got := present(t, p); len(p) != size || len(got) > 0 {
				t.Errorf("%d bytes, want %d; pages %d are present, want none", len(p), size, got)
			}
			p[(folio+1)*device.PageSize], p[size-1] = 1, 1
			got := present(t, p)
			if len(got) != folio+1 || got[0] != folio || got[folio-1] != 2*folio-1 || got[folio] != 2*folio+2 {
				t.Errorf("pages %d are present, want the second folio and the last page", got)
			}
			if err := b.Discard(folio*device.PageSize, device.PageSize); err != nil {
				t.Error(err)
			}
			if got := present(t, p); len(got) != folio || got[0] != folio+1 {
				t.Errorf("pages %d are present, want those but page %d", got, folio)
			}
			if err := b.Free(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A buffer that cannot come in by folios comes in by single pages and says why.
func TestNoFolios(t *testing.T) {
	const size = 32 * device.PageSize
	alloc := func(t *testing.T, f *fake, size int) error {
		e := attachTo(t, startFake(t, f))
		b, err := e.AllocWith(size, AllocOptions{Folios: true})
		if err != nil {
			t.Fatal(err)
		}
		n, why := b.Folio()
		if n != 1 || !errors.Is(why, ErrFolios) {
			t.Errorf("%d pages come in together, %v, want 1 and a reason", n, why)
		}
		if got := present(t, b.Bytes()); len(got) > 0 {
			t.Errorf("pages %d are present, want none", got)
		}
		if err := b.Free(); err != nil {
			t.Error(err)
		}
		if b, err = e.Alloc(size); err != nil {
			t.Fatal(err)
		}
		if n, why := b.Folio(); n != 1 || why != nil {
			t.Errorf("without folios %d pages come in together, %v, want 1", n, why)
		}
		if err := b.Free(); err != nil {
			t.Error(err)
		}
		return why
	}
	newFake := func(t *testing.T) *fake {
		f, err := newFake()
		if err != nil {
			t.Fatal(err)
		}
		f.caps = device.CapsSVA
		return f
	}
	t.Run("the setting", func(t *testing.T) {
		foliotest.Set(t, 0)
		_ = alloc(t, newFake(t), size)
	})
	t.Run("a buffer without room", func(t *testing.T) {
		foliotest.Set(t, 64)
		_ = alloc(t, newFake(t), 60<<10)
	})
	t.Run("method uffd", func(t *testing.T) {
		foliotest.Set(t, 64)
		f := newFake(t)
		f.method, f.hold = pagein.UFFD, oblige(false)
		_ = alloc(t, f, size)
	})
	t.Run("a device with tables of its own", func(t *testing.T) {
		foliotest.Set(t, 64)
		f := newFake(t)
		f.caps = 0
		_ = alloc(t, f, size)
	})
	t.Run("an older pfd", func(t *testing.T) {
		foliotest.Set(t, 64)
		f := newFake(t)
		f.hold = oblige(true)
		var refused *attach.RefusedError
		if why := alloc(t, f, size); !errors.As(why, &refused) {
			t.Errorf("%v, want pfd's refusal as its cause", why)
		}
	})
}

// oblige agrees to all requests for memory; an older one refuses a share that says how it comes in.
func oblige(older bool) func(context.Context, *attach.Conn) error {
	return func(ctx context.Context, c *attach.Conn) error {
		var buf [attach.MaxMessage]byte
		for {
			n, fds, err := c.Receive(ctx, buf[:])
			fds.Close()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			done := attach.Shared{Product: attach.Product()}
			if s, err := attach.DecodeShare(buf[:n]); err == nil {
				done.VA, done.Size, done.Answered = s.VA, s.Size, attach.TypeShare
				if s.Folio > 0 && older {
					if err := c.Refuse(attach.CodeProtocol, attach.TypeShare, "malformed message: reserved bytes are not zero"); err != nil {
						return err
					}
					continue
				}
			} else if r, err := attach.DecodeRange(buf[:n]); err == nil {
				done.VA, done.Size, done.Answered = r.VA, r.Size, r.Type
			}
			if err := c.Send(done.Append(nil)); err != nil {
				return err
			}
		}
	}
}
