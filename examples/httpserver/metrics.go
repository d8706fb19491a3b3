package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/rationgo/ration"
	"github.com/rationgo/ration/otellimit"
)

// metrics is who hears what the store does, and the page that shows it to Prometheus.
type metrics struct {
	observers []ration.Observer // metrics, and the log
	page      http.Handler
	provider  *metric.MeterProvider
}

func newMetrics(log *slog.Logger) (*metrics, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry))
	if err != nil {
		return nil, err
	}
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	observer, err := otellimit.NewObserver(otellimit.WithMeterProvider(provider))
	if err != nil {
		return nil, err
	}
	logs, err := ration.NewSlogObserver(log)
	if err != nil {
		return nil, err
	}
	return &metrics{[]ration.Observer{observer, logs}, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), provider}, nil
}

// redisLog is go-redis's own log, for debugging: what it means for the calls the store says.
type redisLog struct{ log *slog.Logger }

// Printf logs a line.
func (r redisLog) Printf(_ context.Context, format string, v ...any) {
	r.log.Debug("go-redis", "line", fmt.Sprintf(format, v...))
}
