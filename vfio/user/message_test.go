package user

import (
	"bytes"
	"reflect"
	"testing"
)

// Append implements the test's enc.
func (m Feature) Append(b []byte) []byte { return append4(b, m.ArgSize, m.Flags) }

// FuzzDecode decodes any bytes as every message. A message that can be decoded must survive
// encoding and decoding unchanged.
func FuzzDecode(f *testing.F) {
	f.Add(Header{ID: 1, Command: CmdVersion, Size: 16}.Append(nil))
	f.Add(Version{0, 1, Capabilities{MaxFDs: ptr(8), Twin: &TwinSocket{Supported: true, FDIndex: ptr(0)}, WriteMulti: true}}.Append(nil))
	f.Add(DMAMap{32, 3, 1, 2, 3}.Append(nil))
	f.Add(DMAUnmap{24, 0, 1, 2}.Append(nil))
	f.Add(DeviceInfo{16, 3, 9, 5}.Append(nil))
	f.Add(RegionInfo{ArgSize: 80, Flags: 15, Index: 2, Size: 0x4000, Sparse: true, Areas: []Area{{1, 2}, {3, 4}}}.Append(nil))
	f.Add(RegionIOFDs{ArgSize: 56, Index: 1, Count: 1, SubRegions: []SubRegion{{1, 2, 3, 0, 1, 6}}}.Append(nil))
	f.Add(IRQInfo{16, 1, 2, 4}.Append(nil))
	f.Add(IRQSet{22, IRQDataBool | IRQActionMask, 2, 0, 2, []byte{0, 1}}.Append(nil))
	f.Add(RegionAccess{1, 2, 3}.Append(nil))
	f.Add(DMAAccess{1, 2}.Append(nil))
	f.Add(AppendWrites(nil, []Write{{1, 0, 4, [8]byte{1}}}))
	f.Add(Feature{8, FeatureGet | 1}.Append(nil))
	type enc interface{ Append([]byte) []byte }
	check := func(t *testing.T, v enc, err error, again func([]byte) (enc, error)) {
		t.Helper()
		if err != nil {
			return
		}
		w, err := again(v.Append(nil))
		if err != nil || !reflect.DeepEqual(v, w) {
			t.Errorf("%+v is encoded and decoded as %+v, %v", v, w, err)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, decode := range []func([]byte) (enc, error){
			func(b []byte) (enc, error) { return DecodeHeader(b) },
			func(b []byte) (enc, error) { return DecodeVersion(b) },
			func(b []byte) (enc, error) { return DecodeDMAMap(b) },
			func(b []byte) (enc, error) { return DecodeDMAUnmap(b) },
			func(b []byte) (enc, error) { return DecodeDeviceInfo(b) },
			func(b []byte) (enc, error) { return DecodeIRQInfo(b) },
			func(b []byte) (enc, error) { return DecodeRegionIOFDs(b) },
			func(b []byte) (enc, error) { return DecodeIRQSet(b) },
			func(b []byte) (enc, error) { m, _, err := DecodeRegionAccess(b); return m, err },
			func(b []byte) (enc, error) { m, _, err := DecodeDMAAccess(b); return m, err },
			func(b []byte) (enc, error) { m, _, err := DecodeFeature(b); return m, err },
			func(b []byte) (enc, error) {
				m, err := DecodeRegionInfo(b)
				m.Flags &^= regionCaps // said by Sparse
				if len(m.Areas) == 0 {
					m.Areas = nil
				}
				return m, err
			},
		} {
			v, err := decode(b)
			check(t, v, err, decode)
		}
		if n, err := decodeWrites(b); err == nil {
			var ws []Write
			for i := range n {
				ws = append(ws, decodeWrite(b, i))
			}
			if !bytes.Equal(AppendWrites(nil, ws), b) {
				t.Errorf("%d writes do not encode to themselves", n)
			}
		}
		if v, err := DecodeVersion(b); err == nil {
			if l, err := v.Capabilities.limits(); err == nil && (l.transfer == 0 || l.fds < 0 || l.fds > maxFDs) {
				t.Errorf("limits %+v", l)
			}
		}
	})
}
