package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// MaxCommands bounds an agent's list of commands.
const MaxCommands = 1024

// Files and Statuses are lists that a hostile agent cannot make longer than an
// agent's are: an element of three bytes takes a hundred times that in memory.
type (
	Files    []File
	Statuses []Status
)

func (l *Files) UnmarshalJSON(data []byte) (err error) {
	*l, err = bounded[File](data, MaxPage)
	return err
}

func (l *Statuses) UnmarshalJSON(data []byte) (err error) {
	*l, err = bounded[Status](data, MaxCommands)
	return err
}

// bounded reads an array of so many elements at most; of null it is nil.
func bounded[T any](data []byte, most int) ([]T, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	switch begin, err := d.Token(); {
	case err != nil:
		return nil, err
	case begin == nil:
		return nil, nil
	case begin != json.Delim('['):
		return nil, errors.New("not a list")
	}
	list := []T{}
	for d.More() {
		if len(list) == most {
			return nil, fmt.Errorf("a list of more than %d", most)
		}
		var e T
		if err := d.Decode(&e); err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}
