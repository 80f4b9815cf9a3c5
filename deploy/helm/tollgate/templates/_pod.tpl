{{/*
The parts of a pod with Tollgate in it. A chart that has this one as a dependency, with `mode: library`, can use them for
pods of its own; these want `enableServiceLinks: false`, and the group 65532 (`fsGroup`) to read the secrets:

  initContainers:
    {{- include "tollgate.sidecarContainer" .Subcharts.tollgate | nindent 4 }}
  volumes:
    {{- include "tollgate.volumes" .Subcharts.tollgate | nindent 4 }}
*/}}
{{- define "tollgate.container" -}}
- name: tollgate
  image: {{ include "tollgate.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [{{ .Values.command }}, --config, /etc/tollgate/config/tollgate.yaml]
  {{- if has "admin-token" (splitList " " (include "tollgate.secretKeys" .)) }}
  env:
    - name: TOLLGATE_ADMIN_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ include "tollgate.secretName" . }}
          key: admin-token
  {{- end }}
  ports:
    - {name: http, containerPort: {{ .Values.ports.http }}, protocol: TCP}
    - {name: grpc, containerPort: {{ .Values.ports.grpc }}, protocol: TCP}
    {{- if eq .Values.command "gateway" }}
    - {name: gateway, containerPort: {{ .Values.ports.gateway }}, protocol: TCP}
    {{- end }}
  {{- include "tollgate.probes" . | nindent 2 }}
  resources:
    {{- toYaml .Values.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  volumeMounts:
    - {name: tollgate-config, mountPath: /etc/tollgate/config, readOnly: true}
    {{- if .Values.rules }}
    - {name: tollgate-rules, mountPath: /etc/tollgate/rules, readOnly: true}
    {{- end }}
    {{- if include "tollgate.secretKeys" . }}
    - {name: tollgate-secrets, mountPath: /run/secrets/tollgate, readOnly: true}
    {{- end }}
    {{- range $folder, $_ := include "tollgate.certificates" . | fromYaml }}
    - {name: tollgate-tls-{{ $folder }}, mountPath: /run/tls/{{ $folder }}, readOnly: true}
    {{- end }}
    - {name: tollgate-data, mountPath: /var/lib/tollgate}
{{- end -}}

{{/*
The same as a sidecar that starts before the pod's other containers and ends after them, so that they are never without
it: an init container that stays.
*/}}
{{- define "tollgate.sidecarContainer" -}}
{{ include "tollgate.container" . }}
  restartPolicy: Always
{{- end -}}

{{/*
On loopback the kubelet cannot ask, and where clients must show a certificate it has none: the binary asks itself, by its
own configuration.
*/}}
{{- define "tollgate.probes" -}}
{{- $isLoopback := eq (include "tollgate.isLoopback" .) "true" -}}
{{- if or $isLoopback (eq (include "tollgate.needsClientCertificate" .) "true") -}}
{{- $ask := "exec: {command: [/usr/local/bin/tollgate, health, --config, /etc/tollgate/config/tollgate.yaml]}" -}}
startupProbe:
  {{ $ask }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  {{ $ask }}
  periodSeconds: 30
  timeoutSeconds: 5
  failureThreshold: 3
{{- if not $isLoopback }}
readinessProbe:
  exec: {command: [/usr/local/bin/tollgate, health, --ready, --config, /etc/tollgate/config/tollgate.yaml]}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 1
{{- end }}
{{- else -}}
{{- $scheme := ternary "HTTPS" "HTTP" (eq (include "tollgate.isTls" .) "true") -}}
# Rules and counters are loaded before it listens, which takes seconds where there are tens of millions.
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 2
  failureThreshold: 3
# Draining begins with /readyz; drain.delayMs has room for two of these.
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 1
{{- end -}}
{{- end -}}

{{- define "tollgate.volumes" -}}
- name: tollgate-config
  configMap:
    name: {{ include "tollgate.fullname" . }}-config
{{- if .Values.rules }}
- name: tollgate-rules
  configMap:
    name: {{ include "tollgate.fullname" . }}-rules
{{- end }}
{{- with include "tollgate.secretKeys" . }}
- name: tollgate-secrets
  secret:
    secretName: {{ include "tollgate.secretName" $ }}
    defaultMode: 0440
    items:
      {{- range splitList " " . }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- range $folder, $secret := include "tollgate.certificates" . | fromYaml }}
- name: tollgate-tls-{{ $folder }}
  secret:
    secretName: {{ $secret }}
    defaultMode: 0440
{{- end }}
- name: tollgate-data
  emptyDir:
    sizeLimit: {{ .Values.dataVolume.sizeLimit }}
{{- end -}}

{{/* What pods of both patterns have in common. */}}
{{- define "tollgate.podMetadata" -}}
labels:
  {{- include "tollgate.labels" . | nindent 2 }}
  {{- with .Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # A changed configuration needs a restart; changed rules do not.
  checksum/config: {{ include "tollgate.config" . | sha256sum }}
  {{- with .Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "tollgate.podSpec" -}}
serviceAccountName: {{ include "tollgate.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "tollgate.gracePeriodSeconds" . }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.topologySpread.enabled }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tollgate.selectorLabels" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}
