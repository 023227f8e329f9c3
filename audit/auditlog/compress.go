package auditlog

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"sallyport/internal/durable"
	"sallyport/internal/periodic"
)

// packer writes a compressed segment.
type packer struct {
	to     *os.File
	zip    *zstd.Encoder
	table  []byte
	frames uint32
}

func (p *packer) add(b []byte) error {
	packed := p.zip.EncodeAll(b, nil)
	p.table = binary.LittleEndian.AppendUint32(p.table, uint32(len(packed)))
	p.table = binary.LittleEndian.AppendUint32(p.table, uint32(len(b)))
	p.frames++
	_, err := p.to.Write(packed)
	return err
}

// end writes the table.
func (p *packer) end() error {
	b := binary.LittleEndian.AppendUint32(nil, skippableMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p.table)+tableFoot))
	b = append(b, p.table...)
	b = binary.LittleEndian.AppendUint32(b, p.frames)
	b = append(b, 0)
	_, err := p.to.Write(binary.LittleEndian.AppendUint32(b, seekableMagic))
	return err
}

// Compress replaces the file of a sealed segment by a compressed one: see [Segments]. It
// does nothing if that was done. At each moment, also of a crash, one of the two is there
// whole, and readers read one of them. It rests as long as it works.
func Compress(ctx context.Context, dir string, first uint64) error {
	s, err := sealedSegment(dir, first)
	if err != nil {
		return err
	}
	in, err := os.OpenFile(s.path(), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	draft := s.path() + zstSuffix + ".tmp" // Remove takes one away that a crash has left
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err = pack(ctx, in, draft); err == nil {
		err = os.Chtimes(draft, time.Time{}, info.ModTime()) // [Segment.Written]
	}
	if err != nil {
		return errors.Join(fmt.Errorf("compressing %s: %w", s.path(), err), os.Remove(draft))
	}
	if err := os.Rename(draft, s.path()+zstSuffix); err != nil {
		return err
	}
	if err := durable.SyncDir(dir); err != nil {
		return err
	}
	return errors.Join(os.Remove(s.path()), durable.SyncDir(dir))
}

// maxSealed is more than any segment has, in bytes. A larger segment is not the writer's.
const maxSealed = maxFrames * frameSize

// pack writes what a file holds to another one, durably, and reads it back.
func pack(ctx context.Context, in *os.File, path string) error {
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(frameSize), zstd.WithEncoderCRC(true), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	p := packer{to: out, zip: zip}
	was, err := copySum(ctx, io.LimitReader(in, maxSealed), p.add)
	if err != nil {
		return err
	}
	if n, err := in.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return errors.Join(err, errors.New("it is larger than a segment"))
	}
	if err := errors.Join(p.end(), out.Sync()); err != nil {
		return err
	}
	c, err := newContent(out)
	if err != nil {
		return err
	}
	is, err := copySum(ctx, io.NewSectionReader(c, 0, math.MaxInt64), nil)
	if err == nil && string(is) != string(was) {
		err = errors.New("what was written is not what is read")
	}
	return err
}

// copySum reads to the end, hands over a frame at a time, and returns the SHA-256 of it
// all. It rests as long as it works.
func copySum(ctx context.Context, from io.Reader, to func([]byte) error) ([]byte, error) {
	sum := sha256.New()
	buf := make([]byte, frameSize)
	for began := time.Now(); ; {
		n, err := io.ReadFull(from, buf)
		if n > 0 {
			sum.Write(buf[:n])
			if to != nil {
				if err := to(buf[:n]); err != nil {
					return nil, err
				}
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return sum.Sum(nil), nil
		}
		if err != nil {
			return nil, err
		}
		if took := time.Since(began); took > restAfter {
			if !periodic.Sleep(ctx, took) {
				return nil, ctx.Err()
			}
			began = time.Now()
		}
	}
}

// restAfter is how long the processor and the disk are used at a time.
const restAfter = 5 * time.Millisecond
