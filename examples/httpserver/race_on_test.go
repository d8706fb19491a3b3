//go:build race

package main

// raced says whether the tests run under the race detector: then so does what they build.
const raced = true
