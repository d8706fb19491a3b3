package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rationgo/ration"
)

//go:embed config.json
var defaultConfig []byte

// config is the table of plans and clients; config.json is one. It's for a demo: a real
// service keeps digests of its keys, in a database.
type config struct {
	Plans   map[string][]limit `json:"plans"` // each plan is a policy of this name
	Login   []limit            `json:"login"` // failed logins of an address
	Clients []clientConfig     `json:"clients"`
}

type clientConfig struct {
	Name string `json:"name"` // the subject of the limits
	Key  string `json:"key"`  // the API key
	Plan string `json:"plan"`
}

// limit is a ration.Limit, written "5/1s": 5 units in a second.
type limit ration.Limit

// UnmarshalText reads the numbers; whether they are in range the limiters' constructors say.
func (l *limit) UnmarshalText(text []byte) error {
	units, window, _ := strings.Cut(string(text), "/")
	n, err := strconv.ParseInt(units, 10, 64)
	if err != nil {
		return fmt.Errorf("limit %q isn't UNITS/WINDOW such as 100/1m: %w", text, err)
	}
	w, err := time.ParseDuration(window)
	if err != nil {
		return fmt.Errorf("limit %q isn't UNITS/WINDOW such as 100/1m: %w", text, err)
	}
	*l = limit(ration.Per(n, w))
	return nil
}

// readConfig reads a file, or the embedded config if path is "".
func readConfig(path string) (config, error) {
	data := defaultConfig
	if path != "" {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return config{}, err
		}
	}
	var c config
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return config{}, fmt.Errorf("config: %w", err)
	}
	return c, nil
}

// plan is a policy that clients have subscribed to.
type plan struct {
	name    string
	limiter ration.Limiter
}

// client is who has an API key. Its name is the subject of the limits, so that the key is
// neither in Redis nor anywhere else.
type client struct {
	name string
	plan *plan
}

// directory knows the clients by their keys, and the limiter of those who log in.
type directory struct {
	clients map[[sha256.Size]byte]*client
	login   ration.Limiter
}

func newDirectory(store *ration.Store, c config, instances int) (*directory, error) {
	if c.Plans["login"] != nil {
		return nil, errors.New("config: a plan is called login, as the limit on logins is")
	}
	plans := map[string]*plan{}
	for name, limits := range c.Plans {
		limiter, err := planLimiter(store, policy(name, limits), instances)
		if err != nil {
			return nil, err
		}
		plans[name] = &plan{name, limiter}
	}
	login, err := ration.NewSlidingLog(store, policy("login", c.Login))
	if err != nil {
		return nil, err
	}
	dir := &directory{clients: map[[sha256.Size]byte]*client{}, login: login}
	names := map[string]bool{}
	for i, cc := range c.Clients {
		digest := sha256.Sum256([]byte(cc.Key))
		switch {
		case cc.Name == "" || cc.Key == "":
			return nil, fmt.Errorf("config: client %d has no name or no key", i)
		case plans[cc.Plan] == nil:
			return nil, fmt.Errorf("config: client %d has an unknown plan %q", i, cc.Plan)
		case dir.clients[digest] != nil:
			return nil, fmt.Errorf("config: client %d has the key of another", i)
		case names[cc.Name]:
			return nil, fmt.Errorf("config: client %d has the name of another", i)
		}
		names[cc.Name] = true
		dir.clients[digest] = &client{cc.Name, plans[cc.Plan]}
	}
	return dir, nil
}

// planLimiter counts exactly, over all instances, and spends from memory what it can.
func planLimiter(store *ration.Store, p ration.Policy, instances int) (ration.Limiter, error) {
	global, err := ration.NewSlidingLog(store, p)
	if err != nil {
		return nil, err
	}
	return ration.NewTwoTier(global, ration.WithInstances(instances))
}

func policy(name string, limits []limit) ration.Policy {
	p := ration.Policy{Name: name}
	for _, l := range limits {
		p.Limits = append(p.Limits, ration.Limit(l))
	}
	return p
}

// find gives the client with this key, nil if there is none. It looks for a digest, so that the time it
// takes tells nothing about the keys.
func (d *directory) find(key string) *client { return d.clients[sha256.Sum256([]byte(key))] }
