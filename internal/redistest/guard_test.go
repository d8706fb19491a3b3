package redistest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGuardClock(t *testing.T) { // B132
	GuardClock(t, "../..")
}

func TestGuardFindsMisuse(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(dir+"/"+name, []byte(text), 0o600))
	}
	write("bad_test.go", `package p
import "example.org/fakeredis"
func f(s *fakeredis.Server, srv clock) {
	s.Mini().SetTime(now)
	s.Mini().FastForward(1)
	m := s.Mini()
	m.SetTime(now)
	step := srv.x.FastForward
	x.mini = s.Mini()
	x.mini.SetTime(now)
	var v = s.Mini()
	v.SetTime(now)
}
`)
	write("direct_test.go", `package p
import mini "github.com/alicebob/miniredis/v2"
func g(m *mini.Miniredis) { m.SetTime(now) }
`)
	write("good_test.go", `package p
func h() {
	s.SetTime(now)
	s.Advance(1)
	keys := s.Mini().Keys()
	list[0] = s.Mini()
	rdb.SetTime(keys)
	s.m["a"].SetTime(now)
}
`)
	write("helper.go", `package p
func k() { s.Mini().FastForward(1) }
`)
	found, err := clockMisuse(dir)
	require.NoError(t, err)
	require.Equal(t, []string{
		dir + "/bad_test.go:4: SetTime", dir + "/bad_test.go:5: FastForward",
		dir + "/bad_test.go:7: SetTime", dir + "/bad_test.go:8: FastForward",
		dir + "/bad_test.go:10: SetTime", dir + "/bad_test.go:12: SetTime",
		dir + "/direct_test.go:3: SetTime",
	}, found)
	_, err = clockMisuse(t.TempDir())
	require.Error(t, err, "a guard that looks at nothing guards nothing")
}
