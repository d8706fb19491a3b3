// Package frameworks shows httplimit's middleware in chi, gin and echo. They are a module of their
// own, so that nobody else depends on these frameworks.
package frameworks

import (
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"
)

// Middleware is what httplimit.New gives.
type Middleware = func(http.Handler) http.Handler

// Chi takes net/http middlewares as they are. With puts one on a single route.
func Chi(limit Middleware, login http.HandlerFunc) http.Handler {
	r := chi.NewRouter()
	r.With(limit).Post("/login", login)
	return r
}

// Echo has WrapMiddleware. An error that a handler returns is written only after all middlewares, so
// commit writes it before: WithRefund would else see a handler that wrote nothing, which is a 200.
func Echo(limit Middleware, login echo.HandlerFunc) http.Handler {
	e := echo.New()
	e.POST("/login", login, echo.WrapMiddleware(limit), commit)
	return e
}

func commit(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := next(c); err != nil {
			c.Error(err)
		}
		return nil
	}
}

// Gin has a way for handlers of net/http but none for middlewares; Wrap is one.
func Gin(limit Middleware, login gin.HandlerFunc) http.Handler {
	e := gin.New()
	e.POST("/login", Wrap(limit), login)
	return e
}

// Wrap makes a gin handler of a net/http middleware. The chain goes on if the middleware calls its
// next handler, and is aborted if it answers itself.
func Wrap(m Middleware) gin.HandlerFunc {
	return func(c *gin.Context) {
		admitted := false
		m(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			admitted = true
			below := c.Writer
			defer func() { c.Writer = below }()
			c.Writer, c.Request = through{below, w}, r
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !admitted {
			c.Abort()
		}
	}
}

// through is gin's writer, but writes through the middleware's, so that WithRefund sees the status.
type through struct {
	gin.ResponseWriter
	to http.ResponseWriter
}

func (t through) WriteHeader(status int)            { t.to.WriteHeader(status) }
func (t through) Write(p []byte) (int, error)       { return t.to.Write(p) }
func (t through) WriteString(s string) (int, error) { return t.to.Write([]byte(s)) }
