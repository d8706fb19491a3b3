package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/rationtest"
)

func TestDefaultConfig(t *testing.T) {
	c, err := readConfig("")
	require.NoError(t, err)
	require.Equal(t, []limit{{Units: 5, Window: time.Second}, {Units: 100, Window: time.Minute}}, c.Plans["free"])
	dir, err := newDirectory(rationtest.NewRedis(t).Store(), c, 2)
	require.NoError(t, err)
	require.Equal(t, "ada", dir.find("demo-free-key").name)
	require.Equal(t, "free", dir.find("demo-free-key").plan.name)
	require.Equal(t, "pro", dir.find("demo-pro-key").plan.name)
	require.Nil(t, dir.find(""))
	require.Nil(t, dir.find("demo-free-key "))
}

func TestConfigMistakes(t *testing.T) {
	store := rationtest.NewRedis(t).Store()
	for name, c := range map[string]struct{ text, want string }{
		"no json":       {`{`, "unexpected EOF"},
		"unknown field": {`{"plan": {}}`, `unknown field "plan"`},
		"no units":      {`{"login": ["/1s"]}`, "UNITS/WINDOW"},
		"no window":     {`{"login": ["5"]}`, "UNITS/WINDOW"},
		"bad window":    {`{"login": ["5/1 day"]}`, "UNITS/WINDOW"},
		"negative":      {`{"plans": {"free": ["-5/1s"]}, "login": ["1/1s"]}`, "invalid policy"},
		"no login":      {`{"plans": {"free": ["5/1s"]}}`, "invalid policy"},
		"bad plan name": {`{"plans": {"the free": ["5/1s"]}, "login": ["1/1s"]}`, "invalid policy"},
		"unknown plan":  {`{"login": ["1/1s"], "clients": [{"name": "a", "key": "secret", "plan": "x"}]}`, "unknown plan"},
		"no key":        {`{"plans": {"x": ["5/1s"]}, "login": ["1/1s"], "clients": [{"name": "a", "plan": "x"}]}`, "no key"},
		"key twice": {`{"plans": {"x": ["5/1s"]}, "login": ["1/1s"], "clients": [
			{"name": "a", "key": "secret", "plan": "x"}, {"name": "b", "key": "secret", "plan": "x"}]}`, "the key of another"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			require.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
			conf, err := readConfig(file)
			if err == nil {
				_, err = newDirectory(store, conf, 2)
			}
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "secret")
		})
	}
	_, err := readConfig(filepath.Join(t.TempDir(), "none.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = newDirectory(store, config{Plans: map[string][]limit{"x": {{Units: 1, Window: time.Second}}}}, -1)
	require.ErrorIs(t, err, ration.ErrInvalidOption)
}

func TestLimitText(t *testing.T) {
	var l limit
	require.NoError(t, json.Unmarshal([]byte(`"100/1m"`), &l))
	require.Equal(t, limit(ration.PerMinute(100)), l)
	require.Error(t, json.Unmarshal([]byte(`"100/1m/1s"`), &l))
}
