{{- define "stele.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the operator's own objects: the release's name, followed by the chart's unless it contains that. */}}
{{- define "stele.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "stele.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "stele.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "stele.operator" -}}
{{- printf "%s-operator" (include "stele.fullname" .) -}}
{{- end -}}

{{- define "stele.operatorServiceAccount" -}}
{{- default (include "stele.operator" .) .Values.serviceAccounts.operator -}}
{{- end -}}

{{/* With `helm upgrade --reuse-values` new values are empty, so their defaults are repeated here. */}}
{{- define "stele.executorServiceAccount" -}}
{{- default "stele-executor" .Values.serviceAccounts.executor -}}
{{- end -}}

{{/* The Secret of each watched namespace by which Spark's drivers and executors authenticate. */}}
{{- define "stele.sparkSecret" -}}
{{- default (printf "%s-auth" .Values.serviceAccounts.spark) (.Values.spark).existingSecret -}}
{{- end -}}

{{/* The watched namespaces, comma separated. */}}
{{- define "stele.namespaces" -}}
{{- join "," (default (list .Release.Namespace) .Values.watchNamespaces) -}}
{{- end -}}

{{/* Name of a cluster-scoped object: two releases in two namespaces must not share it. */}}
{{- define "stele.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "stele.fullname" .) -}}
{{- end -}}

{{- define "stele.selector" -}}
app.kubernetes.io/name: stele-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "stele.labels" -}}
{{ include "stele.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: stele
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Pull secrets of pods or ServiceAccounts; nothing when no Secret is named. */}}
{{- define "stele.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
