//go:build race

package gateway_test

// raceEnabled makes tests of volume smaller: they take ten times as long.
const raceEnabled = true
