package frameworks_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/examples/frameworks"
	"github.com/rationgo/ration/httplimit"
	"github.com/rationgo/ration/rationtest"
)

// each is the same service three times: POST /login lets in those whose password is "right".
func each(limit frameworks.Middleware) map[string]http.Handler {
	gin.SetMode(gin.TestMode)
	const greeting = "welcome"
	right := func(r *http.Request) bool { return r.Header.Get("X-Password") == "right" }
	return map[string]http.Handler{
		"chi": frameworks.Chi(limit, func(w http.ResponseWriter, r *http.Request) {
			if !right(r) {
				http.Error(w, "no", http.StatusUnauthorized)
				return
			}
			io.WriteString(w, greeting)
		}),
		"echo": frameworks.Echo(limit, func(c echo.Context) error {
			if !right(c.Request()) {
				return echo.NewHTTPError(http.StatusUnauthorized, "no")
			}
			return c.String(http.StatusOK, greeting)
		}),
		"gin": frameworks.Gin(limit, func(c *gin.Context) {
			if !right(c.Request) {
				c.AbortWithStatusJSON(http.StatusUnauthorized, "no")
				return
			}
			c.String(http.StatusOK, greeting)
		}),
	}
}

// Three failed logins a minute; others don't count.
func TestFrameworks(t *testing.T) {
	for _, name := range []string{"chi", "echo", "gin"} {
		t.Run(name, func(t *testing.T) {
			rdb := rationtest.NewRedis(t)
			limiter, err := ration.NewSlidingLog(rdb.Store(), ration.Policy{Name: "login", Limits: []ration.Limit{ration.PerMinute(3)}})
			if err != nil {
				t.Fatal(err)
			}
			limit, err := httplimit.New(limiter, httplimit.RemoteIP(),
				httplimit.WithRefund(func(_ *http.Request, status int) bool { return status < 400 }))
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(each(limit)[name])
			defer server.Close()
			for i, step := range []struct {
				password string
				status   int
				limits   string
				body     string
			}{
				{"right", 200, `"3/1m0s";r=2;t=60`, "welcome"},
				{"wrong", 401, `"3/1m0s";r=2;t=60`, "no"},
				{"right", 200, `"3/1m0s";r=1;t=60`, "welcome"},
				{"wrong", 401, `"3/1m0s";r=1;t=60`, "no"},
				{"wrong", 401, `"3/1m0s";r=0;t=60`, "no"},
				{"right", 429, `"3/1m0s";r=0;t=60`, "quota-exceeded"},
				{"wrong", 429, `"3/1m0s";r=0;t=60`, "quota-exceeded"},
			} {
				r, err := http.NewRequest(http.MethodPost, server.URL+"/login", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("X-Password", step.password)
				resp, err := server.Client().Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil {
					t.Fatal(err)
				}
				if resp.StatusCode != step.status || resp.Header.Get("RateLimit") != step.limits || !strings.Contains(string(body), step.body) {
					t.Fatalf("step %d: %d %s %q, want %+v", i, resp.StatusCode, resp.Header.Get("RateLimit"), body, step)
				}
			}
		})
	}
}
