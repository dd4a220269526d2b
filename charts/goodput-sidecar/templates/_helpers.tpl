{{- define "goodput-sidecar.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "goodput-sidecar.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "goodput-sidecar.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "goodput-sidecar.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "goodput-sidecar.selector" -}}
app.kubernetes.io/name: {{ include "goodput-sidecar.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "goodput-sidecar.labels" -}}
app.kubernetes.io/name: {{ include "goodput-sidecar.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* An image by digest where one is given, else by tag. Takes a dict: image, fallback. */}}
{{- define "goodput-sidecar.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .fallback) -}}
{{- end -}}
{{- end -}}

{{/* The ConfigMap that holds capacity.json; empty where there is none. */}}
{{- define "goodput-sidecar.capacityMap" -}}
{{- if .Values.sidecar.capacityConfigMap -}}
{{- .Values.sidecar.capacityConfigMap -}}
{{- else if .Values.sidecar.capacity -}}
{{- printf "%s-config" (include "goodput-sidecar.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/*
The native sidecar, for an initContainers list. A chart that depends on this one includes it so:
  initContainers:
    {{- include "goodput-sidecar.container" . | nindent 4 }}
and adds "goodput-sidecar.volumes" to its volumes.
*/}}
{{- define "goodput-sidecar.container" -}}
- name: goodput-sidecar
  image: {{ include "goodput-sidecar.image" (dict "image" .Values.sidecar.image "fallback" .Chart.AppVersion) | quote }}
  imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
  # A native sidecar: starts before vLLM, stops after it, restarts by itself.
  restartPolicy: Always
  command: ["goodput-sidecar"]
  args:
    - run
    - --upstream=http://127.0.0.1:{{ .Values.vllm.port }}
    - --listen={{ .Values.sidecar.listenHost }}:{{ .Values.sidecar.port }}
    - --admin={{ .Values.sidecar.listenHost }}:{{ .Values.sidecar.adminPort }}
    - --scrape-interval-s={{ .Values.sidecar.scrapeIntervalSeconds }}
    - --drain-s={{ .Values.sidecar.drainSeconds }}
    {{- if .Values.sidecar.sloFile }}
    - --slo-file=/etc/goodput/config/slo.yaml
    {{- else if .Values.sidecar.slo }}
    - {{ printf "--slo=%s" .Values.sidecar.slo | quote }}
    {{- end }}
    {{- if include "goodput-sidecar.capacityMap" . }}
    - --capacity=/etc/goodput/capacity/capacity.json
    {{- end }}
    {{- range .Values.sidecar.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  env:
    # Who this pod is: GPU exporters name the pod that holds a GPU.
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    {{- with .Values.sidecar.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: http
      containerPort: {{ .Values.sidecar.port }}
    - name: goodput-admin
      containerPort: {{ .Values.sidecar.adminPort }}
  # vLLM starts only after this succeeds: it asks the sidecar alone and must never wait for vLLM.
  startupProbe:
    httpGet:
      path: /healthz
      port: {{ .Values.sidecar.adminPort }}
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    httpGet:
      path: /healthz
      port: {{ .Values.sidecar.adminPort }}
    periodSeconds: 10
    failureThreshold: 3
  # Through the proxy, so that it says what clients will meet: vLLM's own health.
  readinessProbe:
    httpGet:
      path: /health
      port: {{ .Values.sidecar.port }}
    periodSeconds: 5
    timeoutSeconds: 5
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
    seccompProfile:
      type: RuntimeDefault
  resources:
    {{- toYaml .Values.sidecar.resources | nindent 4 }}
  volumeMounts:
    - name: goodput-tmp
      mountPath: /tmp
    {{- if .Values.sidecar.sloFile }}
    - name: goodput-config
      mountPath: /etc/goodput/config
      readOnly: true
    {{- end }}
    {{- if include "goodput-sidecar.capacityMap" . }}
    - name: goodput-capacity
      mountPath: /etc/goodput/capacity
      readOnly: true
    {{- end }}
{{- end -}}

{{- define "goodput-sidecar.volumes" -}}
- name: goodput-tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if .Values.sidecar.sloFile }}
- name: goodput-config
  configMap:
    name: {{ include "goodput-sidecar.fullname" . }}-config
    items:
      - key: slo.yaml
        path: slo.yaml
{{- end }}
{{- with include "goodput-sidecar.capacityMap" . }}
- name: goodput-capacity
  configMap:
    name: {{ . }}
    items:
      - key: capacity.json
        path: capacity.json
{{- end }}
{{- end -}}
