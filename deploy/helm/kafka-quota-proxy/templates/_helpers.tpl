{{- define "kafka-quota-proxy.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (default .Chart.Name .Values.nameOverride) .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name (default .Chart.Name .Values.nameOverride) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "kafka-quota-proxy.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kafka-quota-proxy.labels" -}}
{{ include "kafka-quota-proxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kafka-quota-proxy.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "kafka-quota-proxy.quotas" -}}
{{ default (printf "%s-quotas" (include "kafka-quota-proxy.fullname" .)) .Values.existingQuotasConfigMap }}
{{- end }}

{{/* Not empty: neither the quotas' text, which has only comments, nor an option sets a limit. */}}
{{- define "kafka-quota-proxy.unlimited" -}}
{{- $options := regexMatch "--(quota|cluster-quotas|quotas-topic)(=|\\s|$)" (join " " .Values.extraArgs) }}
{{- if not (or .Values.existingQuotasConfigMap $options (regexMatch "(?m)^\\s*[^#\\s]" .Values.quotas)) }}true{{ end }}
{{- end }}

{{- define "kafka-quota-proxy.account" -}}
{{ default (ternary (include "kafka-quota-proxy.fullname" .) "" .Values.shared.serviceAccount.create) .Values.shared.serviceAccount.name }}
{{- end }}

{{/* HOST:PORT of a shared proxy for clients. */}}
{{- define "kafka-quota-proxy.address" -}}
{{- with .Values.shared }}
{{- $host := .advertisedHost | default (regexFind "^[^:]*" .sniHost | replace "{node}" "bootstrap") | default (include "kafka-quota-proxy.host" $) }}
{{- $host }}:{{ include "kafka-quota-proxy.clientPort" $ }}
{{- end }}
{{- end }}

{{/* The first port that clients are told: of the Service. */}}
{{- define "kafka-quota-proxy.clientPort" -}}
{{ regexFind ":[0-9]+$" .Values.shared.sniHost | trimPrefix ":" | default (int .Values.port) }}
{{- end }}

{{- define "kafka-quota-proxy.host" -}}
{{ .Values.shared.advertisedHost | default (printf "%s.%s.svc" (include "kafka-quota-proxy.fullname" .) .Release.Namespace) }}
{{- end }}

{{/* The number of ports for brokers, after the first. */}}
{{- define "kafka-quota-proxy.brokers" -}}
{{- if eq .Values.mode "sidecar" }}{{ .Values.sidecar.brokerPorts }}{{ else if .Values.shared.sniHost }}0{{ else }}{{ .Values.shared.brokers }}{{ end }}
{{- end }}

{{/* What no schema of single values refuses. */}}
{{- define "kafka-quota-proxy.check" -}}
{{- $last := add .Values.port (include "kafka-quota-proxy.brokers" .) | int }}
{{- if gt $last 65535 }}
{{- fail (printf "the ports of brokers end at %d: lower port, or the number of brokers' ports" $last) }}
{{- end }}
{{- if and (ge (int .Values.adminPort) (int .Values.port)) (le (int .Values.adminPort) $last) }}
{{- fail (printf "adminPort %v is among the ports of clients, %v to %d" .Values.adminPort .Values.port $last) }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (eq .Values.mode "sidecar") }}
{{- fail "networkPolicy is for mode shared: for the admin port of sidecars see deploy/helm/examples/admin-port.yaml" }}
{{- end }}
{{- if eq .Values.mode "shared" }}
{{- with .Values.shared }}
{{- $most := ternary .autoscaling.maxReplicas .replicas .autoscaling.enabled | int }}
{{- if and (gt $most 1) (not $.Values.fleet.name) }}
{{- fail (printf "%d replicas without fleet.name would each allow the whole of every limit: set fleet.name, which makes them share it (docs/fleet.md)" $most) }}
{{- end }}
{{- if and $.Values.fleet.name (lt (int $.Values.fleet.maxMembers) (add $most 1 | int)) }}
{{- fail (printf "fleet.maxMembers %v is less than %d replicas and the one that an upgrade starts before it ends another" $.Values.fleet.maxMembers $most) }}
{{- end }}
{{- if and .autoscaling.enabled (gt (int .autoscaling.minReplicas) $most) }}
{{- fail (printf "shared.autoscaling.minReplicas %v is more than maxReplicas %d" .autoscaling.minReplicas $most) }}
{{- end }}
{{- if and .sniHost (not .tlsSecretName) }}
{{- fail "shared.sniHost needs shared.tlsSecretName: brokers are told apart by the name in the TLS handshake" }}
{{- end }}
{{- if and .tlsRoute.parentRefs (not .sniHost) }}
{{- fail "shared.tlsRoute needs shared.sniHost: a route has one port for all brokers" }}
{{- end }}
{{- if and (ne .tlsClientAuth "none") (not .tlsSecretName) }}
{{- fail (printf "shared.tlsClientAuth %s needs shared.tlsSecretName" .tlsClientAuth) }}
{{- end }}
{{- $first := include "kafka-quota-proxy.clientPort" $ | int }}
{{- $last = add $first (include "kafka-quota-proxy.brokers" $) | int }}
{{- if and (eq .serviceType "NodePort") (or (lt $first 30000) (gt $last 32767)) }}
{{- fail (printf "clients connect to the ports that the proxy names, so with NodePort these are ports of nodes, 30000 to 32767, not %d to %d" $first $last) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The options that both shapes have. */}}
{{- define "kafka-quota-proxy.args" -}}
- run
- --bootstrap-servers={{ required "bootstrapServers is required: the brokers to forward to" .Values.bootstrapServers }}
- --quotas-file=/etc/kafka-quota-proxy/quotas/quotas.toml
- --drain-timeout={{ .Values.drainTimeoutSeconds | int }}s
- --max-buffered-bytes={{ .Values.maxBufferedBytes }}
- --log-format={{ .Values.logFormat }}
{{- if .Values.credentials.secretName }}
- --command-config=/etc/kafka-quota-proxy/credentials/{{ .Values.credentials.file }}
{{- end }}
{{- if .Values.ownClientConfig.secretName }}
- --own-client-config=/etc/kafka-quota-proxy/own-client/{{ .Values.ownClientConfig.file }}
{{- end }}
{{- with .Values.fleet }}
{{- if .name }}
- {{ printf "--fleet=%s" .name | quote }}
{{- end }}
- --fleet-topic={{ .topic }}
- --fleet-max-members={{ .maxMembers | int }}
{{- end }}
{{- if .Values.dryRun }}
- --dry-run
{{- end }}
{{- end }}

{{/* What both shapes have besides their name, arguments and probes. */}}
{{- define "kafka-quota-proxy.rest" -}}
image: {{ include "kafka-quota-proxy.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
# A wrong configuration is in `kubectl describe pod`, too.
terminationMessagePolicy: FallbackToLogsOnError
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
  privileged: false
  readOnlyRootFilesystem: true
  {{- with .Values.userId }}
  runAsGroup: {{ . | int }}
  {{- end }}
  runAsNonRoot: true
  {{- with .Values.userId }}
  runAsUser: {{ . | int }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
volumeMounts:
  - name: kafka-quota-proxy-quotas
    mountPath: /etc/kafka-quota-proxy/quotas
    readOnly: true
{{- if .Values.credentials.secretName }}
  - name: kafka-quota-proxy-credentials
    mountPath: /etc/kafka-quota-proxy/credentials
    readOnly: true
{{- end }}
{{- if .Values.ownClientConfig.secretName }}
  - name: kafka-quota-proxy-own-client
    mountPath: /etc/kafka-quota-proxy/own-client
    readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{/* The sidecar: an item of initContainers. For a chart of your own:
     include "kafka-quota-proxy.sidecar" (index .Subcharts "kafka-quota-proxy") */}}
{{- define "kafka-quota-proxy.sidecar" -}}
name: kafka-quota-proxy
restartPolicy: Always
args: {{- include "kafka-quota-proxy.args" . | nindent 2 }}
  - --listen=127.0.0.1:{{ .Values.port | int }}
  - --broker-ports={{ add .Values.port 1 }}-{{ add .Values.port .Values.sidecar.brokerPorts }}
{{- range .Values.extraArgs }}
  - {{ . | quote }}
{{- end }}
env:
  # Empty without the annotation, which is as if it were not set.
  - name: KAFKA_QUOTA_PROXY_QUOTA_SHARE
    valueFrom:
      fieldRef:
        apiVersion: v1
        fieldPath: metadata.annotations['kafka-quota-proxy/quota-share']
  - name: KAFKA_QUOTA_PROXY_FLEET
    valueFrom:
      fieldRef:
        apiVersion: v1
        fieldPath: {{ if .Values.fleet.label }}metadata.labels['{{ .Values.fleet.label }}']{{ else }}metadata.annotations['kafka-quota-proxy/fleet']{{ end }}
  - name: KAFKA_QUOTA_PROXY_CLIENT_ID
    valueFrom:
      fieldRef:
        apiVersion: v1
        fieldPath: metadata.annotations['kafka-quota-proxy/client-id']
  - name: KAFKA_QUOTA_PROXY_SIDECAR_NAME
    valueFrom:
      fieldRef:
        apiVersion: v1
        fieldPath: metadata.name
  - name: KAFKA_QUOTA_PROXY_METRICS_LISTEN
    value: "[::]:{{ .Values.adminPort | int }}"
{{- with .Values.extraEnv }}
{{ toYaml . | indent 2 }}
{{- end }}
ports:
  - name: kqp-admin
    containerPort: {{ .Values.adminPort | int }}
    protocol: TCP
# The containers of the job start after it. Nothing else asks for brokers: their outage restarts no sidecar.
startupProbe:
  httpGet: {path: /readyz, port: kqp-admin}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: {{ .Values.sidecar.startupSeconds | int }}
livenessProbe:
  httpGet: {path: /healthz, port: kqp-admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{ include "kafka-quota-proxy.rest" . }}
{{- end }}

{{/* 0440 with the fsGroup of a shared proxy, else 0444: pods of jobs may have no fsGroup, and then only root could read
     0440. No container but the proxy's mounts the file. */}}
{{- define "kafka-quota-proxy.secretMode" -}}
{{ ternary 288 292 (eq .Values.mode "shared") }}
{{- end }}

{{/* The volumes of both shapes: a list. */}}
{{- define "kafka-quota-proxy.volumes" -}}
- name: kafka-quota-proxy-quotas
  configMap:
    name: {{ include "kafka-quota-proxy.quotas" . }}
    defaultMode: 292
{{- if .Values.credentials.secretName }}
- name: kafka-quota-proxy-credentials
  secret:
    secretName: {{ .Values.credentials.secretName }}
    defaultMode: {{ include "kafka-quota-proxy.secretMode" . }}
{{- end }}
{{- if .Values.ownClientConfig.secretName }}
- name: kafka-quota-proxy-own-client
  secret:
    secretName: {{ .Values.ownClientConfig.secretName }}
    defaultMode: {{ include "kafka-quota-proxy.secretMode" . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A value as an expression in CEL. dyn(): the values of a literal have one type otherwise. */}}
{{- define "kafka-quota-proxy.cel" -}}
{{- if kindIs "map" . -}}
{ {{- range $i, $key := keys . | sortAlpha }}{{ if $i }}, {{ end }}{{ $key | toJson }}: dyn({{ include "kafka-quota-proxy.cel" (get $ $key) }}){{ end -}} }
{{- else if kindIs "slice" . -}}
[ {{- range $i, $item := . }}{{ if $i }}, {{ end }}dyn({{ include "kafka-quota-proxy.cel" $item }}){{ end -}} ]
{{- else if kindIs "string" . -}}{{ . | toJson }}
{{- else if kindIs "bool" . -}}{{ . }}
{{- else -}}{{ . | int64 }}
{{- end -}}
{{- end }}
