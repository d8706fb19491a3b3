package otellimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/otellimit"
)

// A service with a page of metrics for Prometheus. Its Redis doesn't run here, so that the
// failure rule decides.
func ExampleNewObserver() {
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutScopeInfo())
	if err != nil {
		panic(err)
	}
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	defer provider.Shutdown(context.Background())
	observer, err := otellimit.NewObserver(otellimit.WithMeterProvider(provider))
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{})
	rdb.Close()
	store, err := ration.Open(rdb, ration.WithObserver(observer), ration.WithOnFailure(ration.FailLocal(1)))
	if err != nil {
		panic(err)
	}
	login, err := ration.NewSlidingLog(store, ration.Policy{Name: "login", Limits: []ration.Limit{ration.PerHour(2)}})
	if err != nil {
		panic(err)
	}
	for range 3 {
		if _, err := login.Allow(context.Background(), "alice"); err != nil {
			panic(err)
		}
	}
	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "ration_decisions_total") || strings.HasPrefix(line, "ration_units") {
			fmt.Print(line)
		}
	}
	// Output:
	// ration_decisions_total{ration_degraded="true",ration_operation="allow",ration_policy="login",ration_source="ring",ration_verdict="allowed"} 2
	// ration_decisions_total{ration_degraded="true",ration_operation="allow",ration_policy="login",ration_source="ring",ration_verdict="refused"} 1
	// ration_units_granted_total{ration_degraded="true",ration_policy="login",ration_source="ring"} 2
}

// Each decision is a span below that of its request.
func ExampleTrace() {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	limiter, err := ration.NewLocal(ration.Policy{Name: "login", Limits: []ration.Limit{ration.PerHour(1)}})
	if err != nil {
		panic(err)
	}
	limiter, err = otellimit.Trace(limiter, otellimit.WithTracerProvider(provider), otellimit.WithPolicy("login"))
	if err != nil {
		panic(err)
	}
	ctx, request := provider.Tracer("service").Start(context.Background(), "GET /login")
	for range 2 {
		if _, err := limiter.Allow(ctx, "alice"); err != nil {
			panic(err)
		}
	}
	request.End()
	for _, span := range recorder.Ended() {
		fmt.Println(span.Name())
		for _, a := range span.Attributes() {
			if a.Key == "ration.verdict" {
				fmt.Println("  ", a.Value.AsString())
			}
		}
	}
	// Output:
	// ration allow
	//    allowed
	// ration allow
	//    refused
	// GET /login
}
