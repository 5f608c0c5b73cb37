package sim

import (
	"github.com/exanet/pfd/soc"
	"github.com/exanet/pfd/soc/link"
	"github.com/exanet/pfd/soc/pldma"
	"github.com/exanet/pfd/soc/wire"
)

// nobody has empty methods; observers embed it for events that they ignore.
type nobody struct{}

func (nobody) moves(*Node, *Process, *pldma.Access) {}
func (nobody) landed(*Process, *pldma.Access)       {}
func (nobody) carried([]link.Delivery)              {}
func (nobody) arrived(*wire.Frame, uint64)          {}
func (nobody) reported(*Node, *soc.Action)          {}
func (nobody) wrote(*Node, uint32, uint64)          {}
