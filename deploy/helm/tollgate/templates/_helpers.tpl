{{/* Names and labels. */}}
{{- define "tollgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tollgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "tollgate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tollgate.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tollgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tollgate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "tollgate.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "tollgate.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}

{{- define "tollgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tollgate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Does Tollgate listen on loopback only? */}}
{{- define "tollgate.isLoopback" -}}
{{- if and (ne .Values.mode "central") .Values.sidecar.loopback -}}true{{- end -}}
{{- end -}}

{{- define "tollgate.role" -}}
{{- default (ternary "all" "data" (eq .Values.mode "central")) .Values.role -}}
{{- end -}}

{{/* The keys of the Secret that are in use, separated by spaces. */}}
{{- define "tollgate.secretKeys" -}}
{{- if .Values.secrets.existing.name -}}
{{- join " " .Values.secrets.existing.keys -}}
{{- else -}}
{{- $keys := list -}}
{{- with .Values.secrets -}}
{{- if .adminToken }}{{ $keys = append $keys "admin-token" }}{{ end -}}
{{- if .dataTokens }}{{ $keys = append $keys "data-tokens" }}{{ end -}}
{{- if .apiKeySecret }}{{ $keys = append $keys "api-key-secret" }}{{ end -}}
{{- if .redisPassword }}{{ $keys = append $keys "redis-password" }}{{ end -}}
{{- if .postgresPassword }}{{ $keys = append $keys "postgres-password" }}{{ end -}}
{{- end -}}
{{- join " " $keys -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.secretName" -}}
{{- default (include "tollgate.fullname" .) .Values.secrets.existing.name -}}
{{- end -}}

{{/* How long a pod may take to end: both parts of draining, and the last flush. A sidecar gets SIGTERM after the other containers. */}}
{{- define "tollgate.gracePeriodSeconds" -}}
{{- $others := ternary (int .Values.sidecar.graceSeconds) 0 (eq .Values.mode "sidecar") -}}
{{- add (div (add (int .Values.drain.delayMs) (int .Values.drain.timeoutMs) 999) 1000) 10 $others -}}
{{- end -}}

{{/* The TLS of the listeners, as the configuration has it: what `config` says counts too. */}}
{{- define "tollgate.isTls" -}}
{{- if dig "tls" "cert_file" "" (include "tollgate.config" . | fromYaml) -}}true{{- end -}}
{{- end -}}

{{/* Must every client show a certificate? */}}
{{- define "tollgate.needsClientCertificate" -}}
{{- if eq (dig "tls" "client_certificates" "off" (include "tollgate.config" . | fromYaml)) "required" -}}true{{- end -}}
{{- end -}}

{{/* The Secrets with certificates that are in use: the folder below /run/tls, and the Secret. */}}
{{- define "tollgate.certificates" -}}
{{- $found := dict -}}
{{- with .Values.tls.secretName }}{{ $_ := set $found "listener" . }}{{ end -}}
{{- with .Values.tls.clientCaSecretName }}{{ $_ := set $found "client-ca" . }}{{ end -}}
{{- with .Values.redis.tls.secretName }}{{ $_ := set $found "redis" . }}{{ end -}}
{{- with .Values.postgres.tlsSecretName }}{{ $_ := set $found "postgres" . }}{{ end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* tollgate.yaml: what the chart knows, and over it what `config` says. */}}
{{- define "tollgate.config" -}}
{{- $keys := splitList " " (include "tollgate.secretKeys" .) -}}
{{- $host := ternary "127.0.0.1" "0.0.0.0" (eq (include "tollgate.isLoopback" .) "true") -}}
{{- $config := dict
      "http" (printf "%s:%d" $host (int .Values.ports.http))
      "grpc" (printf "%s:%d" $host (int .Values.ports.grpc))
      "data_dir" "/var/lib/tollgate"
      "role" (include "tollgate.role" .)
      "limits" (dict "drain_delay_ms" (int .Values.drain.delayMs) "drain_timeout_ms" (int .Values.drain.timeoutMs))
      "log" (dict "format" "json") -}}
{{- if ne $host "127.0.0.1" -}}
{{- $_ := set $config "data_auth" .Values.dataAuth -}}
{{- if eq .Values.dataAuth "token" -}}
{{- if not (has "data-tokens" $keys) -}}
{{- fail "dataAuth is token: set secrets.dataTokens, or secrets.existing with the key data-tokens" -}}
{{- end -}}
{{- $_ := set $config "data_token_file" "/run/secrets/tollgate/data-tokens" -}}
{{- end -}}
{{- end -}}
{{- with .Values.tls -}}
{{- if .secretName -}}
{{- $tls := dict "cert_file" "/run/tls/listener/tls.crt" "key_file" "/run/tls/listener/tls.key" -}}
{{- if ne .clientCertificates "off" -}}
{{- $_ := set $tls "client_certificates" .clientCertificates -}}
{{- $_ := set $tls "client_ca_file" (ternary "/run/tls/client-ca/ca.crt" "/run/tls/listener/ca.crt" (ne .clientCaSecretName "")) -}}
{{- end -}}
{{- $_ := set $config "tls" $tls -}}
{{- else if ne .clientCertificates "off" -}}
{{- fail "tls.clientCertificates needs tls.secretName" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.dataAuth "mtls") (eq .Values.tls.clientCertificates "off") -}}
{{- fail "dataAuth is mtls: set tls.secretName, and tls.clientCertificates to optional or required" -}}
{{- end -}}
{{- if eq .Values.command "gateway" -}}
{{- $_ := set $config "gateway" (dict "listen" (printf "0.0.0.0:%d" (int .Values.ports.gateway))) -}}
{{- end -}}
{{- if has "api-key-secret" $keys -}}
{{- $_ := set $config "api_key_secret_file" "/run/secrets/tollgate/api-key-secret" -}}
{{- end -}}
{{- if .Values.rules -}}
{{- $_ := set $config "rules" "/etc/tollgate/rules/rules.yaml" -}}
{{- end -}}
{{- if .Values.postgres.url -}}
{{- $_ := set $config "postgres" .Values.postgres.url -}}
{{- if has "postgres-password" $keys -}}
{{- $_ := set $config "postgres_password_file" "/run/secrets/tollgate/postgres-password" -}}
{{- end -}}
{{- end -}}
{{- if .Values.redis.urls -}}
{{- $nodes := ternary (int .Values.autoscaling.minReplicas) (int .Values.replicas) .Values.autoscaling.enabled -}}
{{- $redis := dict "urls" .Values.redis.urls "kind" .Values.redis.kind "assumed_nodes" $nodes -}}
{{- if eq .Values.redis.kind "sentinel" -}}
{{- $_ := set $redis "master_name" .Values.redis.masterName -}}
{{- end -}}
{{- if has "redis-password" $keys -}}
{{- $_ := set $redis "password_file" "/run/secrets/tollgate/redis-password" -}}
{{- end -}}
{{- with .Values.redis.tls -}}
{{- if .secretName -}}
{{- $_ := set $redis "ca_file" "/run/tls/redis/ca.crt" -}}
{{- if .clientCertificate -}}
{{- $_ := set $redis "cert_file" "/run/tls/redis/tls.crt" -}}
{{- $_ := set $redis "key_file" "/run/tls/redis/tls.key" -}}
{{- end -}}
{{- else if .clientCertificate -}}
{{- fail "redis.tls.clientCertificate needs redis.tls.secretName" -}}
{{- end -}}
{{- end -}}
{{- $_ := set $config "redis" $redis -}}
{{- end -}}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) -}}
{{- end -}}
