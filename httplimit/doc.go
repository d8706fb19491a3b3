// Package httplimit limits HTTP requests by a [ration.Limiter]: a middleware
// for servers and a [Transport] for clients.
//
//	limit, err := httplimit.New(limiter, httplimit.RemoteIP())
//	if err != nil {
//		return err
//	}
//	http.ListenAndServe(addr, limit(mux))
//
// An admitted request goes to the next handler, with RateLimit-Policy and RateLimit fields on the
// answer; a refused one gets 429 with Retry-After and a problem document (RFC 9457). So does a
// client know what remains and when to come back:
//
//	RateLimit-Policy: "login";q=5;w=60
//	RateLimit: "login";r=4;t=60
//
// # Fields
//
// The fields are those of draft-ietf-httpapi-ratelimit-headers-11, a member for each limit: q units in
// w seconds, of which r remain. t is the time in seconds in which no more than r can be counted
// on: until this limit lets the refused request in, or, if it doesn't refuse, until nothing is counted. A
// limit is called by its Name, or else by its numbers ("5/1m0s"). Whole seconds are all the fields can say; what
// lies between is rounded up, w to at least 1, so a client that comes back as told is never early by
// rounding. t is never above w. Of stacked middlewares each adds its members. [WithHeaders] has older forms.
//
// # Refusals and failures
//
// A refusal is 429. When there is no answer from Redis, an error (ration.FailError) and a refusal by
// ration.FailClosed are both 503, without rate fields, and go to the error handler: an
// outage is never told as somebody's exceeded limit. ration.FailOpen and ration.FailLocal
// decide as they do. A request without a key is 500, never a budget shared by all who have none.
package httplimit
