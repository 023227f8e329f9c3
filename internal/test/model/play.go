package model

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Game is what clients play.
type Game struct {
	Seed    uint64
	Clients int
	Calls   int // of all clients together
	Names   int // of sandboxes
	Pids    int64
	Do      func(Op) Result
}

// verbs and how often they are chosen.
var verbs = []struct {
	verb   Verb
	weight int
}{
	{Create, 14}, {Start, 5}, {Stop, 5}, {Pause, 7}, {Hibernate, 8}, {Wake, 5}, {Remove, 3}, {Get, 4}, {Set, 5},
	{Snapshot, 8}, {Restore, 7}, {Fork, 4}, {WriteFile, 7}, {ReadFile, 6}, {WriteStore, 5}, {ReadStore, 4}, {Bump, 10},
}

// Name of a sandbox of the game's.
func Name(i int) string { return fmt.Sprintf("s%d", i) }

// Play has the clients do what the seed says, and returns all calls. How those of
// several clients fall together is chance, and so is which snapshots there are to
// choose from.
func (g Game) Play() []Call {
	t := &table{Game: g, began: time.Now(), snaps: map[string][]string{}, still: map[string]*sync.RWMutex{}}
	for i := range g.Names {
		t.still[Name(i)] = &sync.RWMutex{}
	}
	var all sync.WaitGroup
	for client := range g.Clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(g.Seed, uint64(client)))
			for n := range g.Calls / g.Clients {
				t.call(client, t.choose(random, fmt.Sprintf("c%d-%d", client, n)))
			}
		})
	}
	all.Wait()
	// One caller looks at the state in the end.
	for i := range g.Names {
		for _, v := range []Verb{Get, ReadFile, ReadStore, Bump, Get} {
			t.call(0, Op{Verb: v, Name: Name(i)})
		}
	}
	return t.calls
}

type table struct {
	Game
	began time.Time
	still map[string]*sync.RWMutex

	mu    sync.Mutex // guards what follows
	snaps map[string][]string
	calls []Call
}

func (t *table) choose(random *rand.Rand, token string) Op {
	total := 0
	for _, v := range verbs {
		total += v.weight
	}
	op := Op{Name: Name(random.IntN(t.Names)), Memory: random.IntN(2) == 0, Pids: t.Pids + int64(random.IntN(3))}
	at := random.IntN(total)
	for _, v := range verbs {
		if at -= v.weight; at < 0 {
			op.Verb = v.verb
			break
		}
	}
	pick, which := random.IntN(2), random.Int()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch snaps := t.snaps[op.Name]; op.Verb {
	case Snapshot:
		op.Arg = token
		t.snaps[op.Name] = append(snaps, token)
	case Restore, Fork:
		if len(snaps) > 0 && (op.Verb == Restore || pick == 0) {
			op.Arg = snaps[which%len(snaps)]
		} else if op.Verb == Restore {
			op.Arg = "none"
		}
	case Set, WriteFile, WriteStore:
		op.Arg = token
	}
	return op
}

// call does one, and notes it. A command that is under way while its sandbox's
// memory is copied is in the copy too, and has its effect a second time there: such
// calls keep clear of each other, since no simple sandbox is like that.
func (t *table) call(client int, op Op) {
	switch {
	case op.Verb.use():
		t.still[op.Name].RLock()
		defer t.still[op.Name].RUnlock()
	case op.Verb == Snapshot || op.Verb == Fork:
		t.still[op.Name].Lock()
		defer t.still[op.Name].Unlock()
	}
	began := time.Since(t.began)
	r := t.Do(op)
	ended := time.Since(t.began)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls = append(t.calls, Call{client, op, r, began, ended})
}
