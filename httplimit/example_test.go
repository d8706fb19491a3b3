package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/httplimit"
)

// Two requests a minute for each address. A service of several instances has a limiter on a
// shared Redis here, such as by ration.NewSlidingLog.
func Example() {
	limiter, err := ration.NewLocal(ration.Policy{
		Name:   "api",
		Limits: []ration.Limit{{Name: "api", Units: 2, Window: 60e9}},
	})
	if err != nil {
		panic(err)
	}
	limit, err := httplimit.New(limiter, httplimit.RemoteIP())
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "hello")
	})))
	defer server.Close()

	for range 3 {
		resp, err := server.Client().Get(server.URL)
		if err != nil {
			panic(err)
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode, resp.Header.Get("RateLimit-Policy"))
	}
	// Output:
	// 200 "api";q=2;w=60
	// 200 "api";q=2;w=60
	// 429 "api";q=2;w=60
}

// An API that allows us 10 calls a second, over all our instances: each request waits its turn, and
// is sent once more if the API refuses it all the same.
func ExampleTransport() {
	limiter, err := ration.NewLocal(ration.Policy{Name: "their-api", Limits: []ration.Limit{ration.PerSecond(10)}})
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: &httplimit.Transport{Limiter: limiter, Retries: 1}}
	defer client.CloseIdleConnections()

	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer api.Close()
	resp, err := client.Get(api.URL)
	if err != nil {
		panic(err)
	}
	resp.Body.Close()
	fmt.Println(resp.Status)
	// Output: 200 OK
}
